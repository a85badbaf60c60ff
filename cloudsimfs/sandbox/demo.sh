# The session of `cloudsimfs demo`: every command is printed before it runs, with its real output. Ends with 0 only if
# results were read through the mount; leaves nothing behind.
#
#   bash demo.sh v1|v2 [stay]

set -euo pipefail

api=$1 stay=${2-}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
unset "${!CLOUDSIMFS_@}" # settings of a real account are not for the sandbox

work=$(mktemp -d "${TMPDIR:-/tmp}/cloudsimfs-demo.XXXXXX")
work=$(cd "$work" && pwd -P)
drive=$work/drive
sandbox='' daemon='' finished=

# -- how it ends -------------------------------------------------------------------------------------------

is_mounted() { grep -qF " $drive fuse.cloudsimfs " /proc/self/mounts; }

alive() { kill -0 "$1" 2>/dev/null; }

end_process() { # $1: a process of ours, or nothing
    [ -n "$1" ] && alive "$1" || return 0
    kill "$1" 2>/dev/null || true
    within 5 "! alive $1" || kill -KILL "$1" 2>/dev/null || true
}

clean_up() {
    local status=$?
    trap - EXIT
    trap '' INT TERM HUP
    cd /
    if [ -z "$finished" ]; then
        echo "demo: ended early (status $status); cleaning up" >&2
        [ "$status" != 0 ] || status=1
        tail -n 5 "$work"/cache/*/mount.log 2>/dev/null | sed 's/^/demo: mount: /' >&2 || true
    elif [ -n "$stay" ]; then
        exit "$status"
    fi
    if is_mounted; then
        timeout 20 cloudsimfs umount --no-wait "$drive" || fusermount3 -uz "$drive" || true
    fi
    end_process "$daemon"
    end_process "$sandbox"
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# -- how it is shown -----------------------------------------------------------------------------------------

bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

note() { printf '\n# %s\n' "$*"; }
show() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; }
fail() { echo "demo: $*" >&2; exit 1; }

run() { # print a command, then do it
    show "$*"
    eval "$*" || {
        echo "demo: that failed: $*" >&2
        if is_mounted; then cat "$drive/.simulations/error" >&2; fi
        exit 1
    }
}

within() { # $1: seconds, $2: a condition
    local end=$((SECONDS + $1))
    until eval "$2"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

# -- the session -----------------------------------------------------------------------------------------------

note "The sandbox: the service of our own, on this machine. It speaks API v1 and v2; this is $api."
run "cd $work"
show "cloudsimfs sandbox --port 0 --key-file key &"
setsid cloudsimfs sandbox --port 0 --key-file key >sandbox.log 2>&1 </dev/null & # not killed by Ctrl-C before the unmount
sandbox=$!
within 20 "grep -q 'listens at' sandbox.log || ! alive $sandbox" || true
cat sandbox.log
url=$(sed -n 's/^the sandbox listens at \([^ ,]*\).*/\1/p' sandbox.log)
[ -n "$url" ] || fail "the sandbox did not start"

note "Its storage as a drive, empty. The control folder is not listed, but there by its name."
run "mkdir drive"
run "cloudsimfs mount drive --url $url --api $api --key-file key --cache-dir cache --run-ttl 2"
daemon=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' drive/.cloudsimfs/status.json)
run "cd drive"
run "ls -A"
run "ls .simulations"

note "A case goes up: plain cp. Then an edit in place, for a run long enough to be stopped."
run "cp -r $here/cases/heated-plate ."
run "sed -i 's/^steps = .*/steps = 4000/' heated-plate/heat.ini"
run "find heated-plate -type f -size +0"

note "Launch: write what you want into a file. It returns when all files are stored and the service gave an id."
run "cat .simulations/options/scripts"
run "echo 'cpu=8 ram=highcore script=heat2d-1.0 folder=heated-plate' > .simulations/launch"
run "cat .simulations/launch"
id=$(sed -n 's/^id=\([0-9]*\).*/\1/p' .simulations/launch)
[ -n "$id" ] || fail "the launch gave no id"
within 20 "grep -q RUNNING .simulations/$id/status" || fail "the run did not start within 20 s"
run "cat .simulations/runs"

note "Its log, followed for 5 seconds."
within 10 "grep -q step .simulations/$id/log" || fail "the log stayed empty for 10 s"
run "timeout 5 tail -n 3 -f .simulations/$id/log || [ \$? = 124 ]"
run "cat .simulations/$id/status"

note "Sync: the service saves the results so far, and the run goes on. They appear in the case's folder."
results=heated-plate/results
run "echo 1 > .simulations/$id/sync"
within 20 "ls $results/*.vtk $results/residuals.csv >/dev/null 2>&1" || fail "no results within 20 s of the sync"
run "ls -l $results"

note "Read through the mount: the residuals, and the head of a temperature field for ParaView."
field=$(find $results -name '*.vtk' -size +0 | LC_ALL=C sort | head -n 1)
run "head -n 4 $results/residuals.csv"
run "head -n 9 $field"
if command -v file >/dev/null; then run "file $results/*.png"; fi

note "Soft stop: the run ends at this step and saves its results."
run "echo soft > .simulations/$id/stop"
within 30 "grep -q STOPPED .simulations/$id/status" || fail "the run did not stop within 30 s"
run "cat .simulations/$id/status"
run "tail -n 2 $results/residuals.csv"

# What the eye saw, checked: a header, rows of numbers, and every byte that ls promised.
all_there() { # may have to be asked again while the last results arrive
    bytes=$(cat "$results"/* | wc -c)
    [ "$bytes" = "$(stat -c %s "$results"/* | awk '{ n += $1 } END { print n }')" ]
}
head -n 1 "$field" | grep -q '^# vtk DataFile' || fail "$field is not a VTK file"
rows=$(grep -cE '^[0-9]+,[0-9.e+-]+,[0-9.]+$' "$results/residuals.csv") || fail "residuals.csv holds no residuals"
within 10 all_there || fail "$bytes bytes could be read in $results, ls says otherwise"

note "What it cost: the service counts API calls, so the mount does, too."
run "cat .cloudsimfs/status"
run "cd .."

if [ -n "$stay" ]; then
    finished=1
    note "The drive stays: $drive"
    echo "# To end it: cloudsimfs umount $drive && kill $sandbox && rm -r $work"
    exit 0
fi

note "Unmount: what is not uploaded yet is uploaded first."
run "cloudsimfs umount drive"
if is_mounted; then fail "still mounted"; fi
finished=1
note "Done: $rows rows of residuals, $bytes bytes of results read through the mount. Nothing is left behind."
