"""Settings from options, environment and profiles: which wins, and what a wrong one is answered with."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudsimfs import config
from cloudsimfs.cli import main
from cloudsimfs.config import keys, mountoptions, profiles
from cloudsimfs.config.settings import SETTINGS
from cloudsimfs.errors import ConfigError
from cloudsimfs.sandbox import Sandbox, Settings
from cloudsimfs.service import Credentials
from harness import client_environment, cloudsimfs, patient, run, wait_until, write_key

WriteConfig = Callable[[str], Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with nothing set."""
    for name in [name for name in os.environ if name.startswith(("CLOUDSIMFS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def write_config(home: Path) -> WriteConfig:
    def write(text: str) -> Path:
        file = home / ".config/cloudsimfs/config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


# -- which one wins --------------------------------------------------------------------------------------------


def test_each_source_is_stronger_than_the_one_before(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ttl() -> tuple[float, str]:
        found = config.resolve({}).values["ttl"]
        return found.value, found.source

    assert ttl() == (60.0, "default")
    file = write_config("ttl = 1")
    assert ttl() == (1.0, str(file))
    file = write_config("ttl = 1\n[profiles.default]\nttl = 2.5\n[profiles.other]\nttl = 3")
    assert ttl() == (2.5, f"{file} [profiles.default]")
    monkeypatch.setenv("CLOUDSIMFS_PROFILE", "other")
    assert ttl() == (3.0, f"{file} [profiles.other]")
    monkeypatch.setenv("CLOUDSIMFS_TTL", "4")
    assert ttl() == (4.0, "CLOUDSIMFS_TTL")
    assert config.resolve({"ttl": "5"}, "default").values["ttl"].value == 5.0


def test_values_as_a_profile_may_write_them(write_config: WriteConfig, home: Path) -> None:
    write_config(
        'cache-size = 1048576\nread_only = true\numask = "077"\nkey-file = "work.key"\nmountpoint = "~/cloud"\n'
        'options = ["noexec", "nodev"]\nuid = "root"\nlog-level = "debug"'
    )
    found = config.resolve({})
    assert found["cache-size"] == 1 << 20
    assert found["read-only"] is True
    assert found["umask"] == 0o077
    assert found["key-file"] == home / ".config/cloudsimfs/work.key"  # not of where the command happens to run
    assert found["mountpoint"] == home / "cloud"
    assert found["options"] == ("noexec", "nodev")
    assert found["uid"] == 0
    assert found["log-level"] == "DEBUG"


def test_what_holds_where_nothing_is_set(home: Path) -> None:
    assert home.is_dir()
    found = config.resolve({})
    assert {name: found[name] for name in SETTINGS if found[name] is not None} == {
        "api": "auto",
        "key-in-query": False,
        "insecure-http": False,
        "cache-size": 20 << 30,
        "ttl": 60.0,
        "run-ttl": 15.0,
        "write-back": 2.0,
        "fsync": "local",
        "offline": False,
        "read-only": False,
        "allow-other": False,
        "umask": 0o022,
        "log-level": "INFO",
        "log-format": "text",
    }


# -- what is wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttl = 'soon'", ["config.toml: ttl = soon: not a number of seconds"]),
        ("[profiles.default]\nttl = -1", ["[profiles.default]: ttl = -1: not a number of seconds"]),
        ("tll = 1", ["config.toml: tll: no such setting; did you mean ttl?"]),
        ("[profiles.default]\ncash-dir = '/x'", ["[profiles.default]: cash-dir: no such setting", "cache-dir?"]),
        (
            "api_key = 'secret-key-1'",
            ["not kept here: remove the line of 'api_key'", "cloudsimfs login"],
        ),
        ("cache-size = 20", ["less than 1M"]),
        ("api = 'v3'", ["api = v3: not one of auto, v1, v2"]),
        ("ttl = [1]", ["ttl: write a text, a number, or true or false"]),
        ("read-only = 'maybe'", ["neither true nor false"]),
        ("calls-per-hour = 0", ["not a number from 1 up"]),
        ("uid = 'nobody-of-that-name'", ["no such user"]),
        ("cache-size = 'lots'", ["not a size", "20G"]),
        ("profiles = 3", ["[profiles.default]"]),
        ("ttl = ", ["not valid TOML"]),
        ("url = ''", ["empty"]),
    ],
)
def test_a_wrong_profile_is_answered_with_file_key_and_remedy(
    write_config: WriteConfig, text: str, words: list[str]
) -> None:
    file = write_config(text)
    with pytest.raises(ConfigError) as caught:
        config.resolve({})
    assert str(file) in str(caught.value)
    assert "secret-key-1" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_profile_names_the_near_one(write_config: WriteConfig) -> None:
    write_config("[profiles.work]\nurl = 'https://a.example'")
    with pytest.raises(ConfigError, match="did you mean work"):
        config.resolve({}, "wrok")
    with pytest.raises(ConfigError, match="login --profile lab"):
        config.resolve({}, "lab")
    with pytest.raises(ConfigError, match="letters, digits"):
        config.resolve({}, "../escape")


def test_a_wrong_environment_variable_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSIMFS_CACHE_SIZE", "many")
    with pytest.raises(ConfigError, match="CLOUDSIMFS_CACHE_SIZE=many: not a size"):
        config.resolve({})


# -- mount options ---------------------------------------------------------------------------------------------


def test_mount_options_are_ours_the_kernels_or_nobodys() -> None:
    words = ["rw", "ro", "noexec", "_netdev", "user", "noauto", "x-systemd.automount", "ttl=5", "key_file=/k"]
    found = mountoptions.parse([*words, "allow_other", "offline", "fsname=work", "default_permissions", "profile=p"])
    assert found.kernel == ["noexec", "fsname=work"]
    assert found.settings == {
        "read-only": "true",
        "ttl": "5",
        "key-file": "/k",
        "allow-other": "true",
        "offline": "true",
        "profile": "p",
    }


@pytest.mark.parametrize("word", ["tll=5", "noexecc", "ttl", "url", "auto_unmount", "api-key=x", "remount"])
def test_unknown_mount_options_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"-o {word.partition('=')[0]}"):
        mountoptions.parse([word])


@pytest.mark.parametrize(
    ("source", "words", "found"),
    [
        ("work", ["ro"], "ro,profile=work,fsname=work"),
        ("https://a.example", [], "url=https://a.example,fsname=https://a.example"),
        ("drive", ["profile=work", "setuid=me"], "profile=work,fsname=drive"),
        ("a,b", ["url=x"], "url=x,fsname=a\\,b"),
    ],
)
def test_the_source_of_a_mount_is_a_profile_or_an_address(source: str, words: list[str], found: str) -> None:
    assert mountoptions.with_source(source, words) == found


# -- keys ------------------------------------------------------------------------------------------------------


def test_the_order_of_keys(home: Path, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config("[profiles.default]\nurl = 'https://a.example'")
    with pytest.raises(ConfigError, match="cloudsimfs login"):
        config.account(config.resolve({}))
    (home / ".config/cloudsimfs/default.key").write_text("key-of-profile")
    assert config.account(config.resolve({})).credentials.key == "key-of-profile"
    file = write_key(home, "key-of-file")
    assert config.account(config.resolve({"key-file": str(file)})).credentials.key == "key-of-file"
    monkeypatch.setenv("CLOUDSIMFS_API_KEY", "key-of-environment")
    assert config.account(config.resolve({"key-file": str(file)})).credentials.key == "key-of-environment"


@pytest.mark.parametrize("by", ["login", "key-file"])
def test_a_stored_key_goes_to_its_own_service_only(home: Path, write_config: WriteConfig, by: str) -> None:
    named = "key-file = 'mine.key'\n" if by == "key-file" else ""
    write_config(f"[profiles.default]\nurl = 'https://a.example/'\n{named}")
    (home / ".config/cloudsimfs" / ("mine.key" if named else "default.key")).write_text("key-of-profile")
    assert config.account(config.resolve({"url": "https://a.example"})).credentials.key == "key-of-profile"
    with pytest.raises(ConfigError, match=r"is for https://a\.example/, and --url names another"):
        config.account(config.resolve({"url": "https://evil.example"}))


def test_a_stored_key_is_for_its_address_whatever_becomes_of_the_file(home: Path, write_config: WriteConfig) -> None:
    file = write_config("[profiles.default]\nurl = 'https://a.example'")
    keys.store("default", Credentials(None, "key-of-profile", "https://a.example"))
    assert config.account(config.resolve({})).credentials.key == "key-of-profile"
    write_config("[profiles.default]\nurl = 'https://evil.example'")
    with pytest.raises(ConfigError, match=r"is for https://a\.example, and .* names another service"):
        config.account(config.resolve({}))
    file.unlink()
    with pytest.raises(ConfigError, match=r"is for https://a\.example, and --url names another service"):
        config.account(config.resolve({"url": "https://evil.example"}))
    assert config.account(config.resolve({"url": "https://a.example/"})).credentials.key == "key-of-profile"
    (home / ".config/cloudsimfs/default.key").write_text("stored-by-an-older-version")
    with pytest.raises(ConfigError, match="not recorded: run `cloudsimfs login` again"):
        config.account(config.resolve({"url": "https://evil.example"}))


# -- the file --------------------------------------------------------------------------------------------------


def test_login_keeps_comments_wherever_they_stand(write_config: WriteConfig) -> None:
    text = (
        "# top\n\n# about work\n[profiles.work]\n# the address\nurl = 'https://old'  # from the lab\n# last\n\n"
        "# about b\n[profiles.b]\nttl = 3\n"
    )
    write_config(text)
    assert profiles.with_url("work", "https://new") == text.replace("'https://old'", '"https://new"')
    assert profiles.with_url("c", "https://new") == f'{text}\n[profiles.c]\nurl = "https://new"\n'


def test_login_leaves_the_rest_of_the_file_alone(write_config: WriteConfig) -> None:
    file = write_config(
        "# mine\nttl = 5  # short\n\n[profiles.work]  # the lab\nttl = 6\nurl = 'old'\n[profiles.b]\n"
    )
    profiles.write(profiles.with_url("work", "https://new.example"))
    profiles.write(profiles.with_url("b", "https://b.example"))
    profiles.write(profiles.with_url("c", "https://c.example"))
    assert file.read_text() == (
        '# mine\nttl = 5  # short\n\n[profiles.work]  # the lab\nttl = 6\nurl = "https://new.example"\n'
        '[profiles.b]\nurl = "https://b.example"\n\n[profiles.c]\nurl = "https://c.example"\n'
    )
    assert profiles.read("c").given["url"].text == "https://c.example"


@pytest.mark.parametrize(
    "text", ["profiles.work.ttl = 5\n", "profiles = { work = { ttl = 5 } }\n", "[ profiles . 'work' ]\nttl = 5"]
)
def test_login_takes_a_file_written_in_another_way(write_config: WriteConfig, text: str) -> None:
    write_config(text)
    profiles.write(profiles.with_url("work", "https://a.example"))
    given = profiles.read("work").given
    assert {name: setting.text for name, setting in given.items()} == {"ttl": "5", "url": "https://a.example"}


def test_login_adds_a_profile_beside_dotted_ones(write_config: WriteConfig) -> None:
    text = 'profiles.work.ttl = 5\nprofiles.work.api = "v1"\n'
    write_config(text)
    assert profiles.with_url("c", "https://new") == f'{text}\n[profiles.c]\nurl = "https://new"\n'


def test_login_leaves_a_comment_with_the_table_that_it_is_about(write_config: WriteConfig) -> None:
    write_config("[profiles.work]  # the lab\nttl = 5\n\n# about other\n[profiles.other]\nttl = 6\n")
    assert profiles.with_url("work", "https://new") == (
        '[profiles.work]  # the lab\nurl = "https://new"\nttl = 5\n\n# about other\n[profiles.other]\nttl = 6\n'
    )


def test_login_keeps_the_line_ends_of_the_file(write_config: WriteConfig) -> None:
    file = write_config("")
    file.write_bytes(b"[profiles.work]\r\nttl = 5\r\n")
    profiles.write(profiles.with_url("work", "https://new"))
    assert file.read_bytes() == b'[profiles.work]\r\nurl = "https://new"\r\nttl = 5\r\n'


def test_login_does_not_break_a_file_that_takes_no_table(write_config: WriteConfig) -> None:
    text = "profiles = { b = { ttl = 5 } }\n"
    file = write_config(text)
    with pytest.raises(ConfigError, match=r'put url = "https://a\.example" into it yourself'):
        profiles.with_url("work", "https://a.example")
    assert file.read_text() == text


def test_what_is_written_is_the_users_alone_and_a_link_stays_one(home: Path) -> None:
    (home / "dotfiles").mkdir()
    file = profiles.config_file()
    file.parent.mkdir(parents=True)
    file.symlink_to(home / "dotfiles/config.toml")
    profiles.write(profiles.with_url("default", "https://a.example"))
    assert file.is_symlink()
    assert stat.S_IMODE((home / "dotfiles/config.toml").stat().st_mode) == 0o600
    assert [each.name for each in (home / "dotfiles").iterdir()] == ["config.toml"]


# -- the commands ----------------------------------------------------------------------------------------------


@pytest.fixture
def limited_box() -> Iterator[Sandbox]:
    with Sandbox(settings=Settings(hourly_limit=100)) as running:
        yield running


def test_login_checks_stores_and_logout_forgets(limited_box: Sandbox, tmp_path: Path) -> None:
    box, env = limited_box, {"XDG_CONFIG_HOME": str(tmp_path / "c")}
    license_file = tmp_path / "license.json"
    license_file.write_text(json.dumps({"username": "me@example.org", "key": box.key}))
    license_file.chmod(0o600)
    wrong = write_key(tmp_path, "wrong-key-0123456789")
    done = cloudsimfs("login", "--url", box.url, "--license", wrong, env=env)
    assert done.returncode == 1
    assert "does not accept this key; nothing was stored" in done.stderr
    assert not (tmp_path / "c").exists()

    box.calls.reset()
    done = cloudsimfs("login", "--profile", "work", "--url", box.url, "--license", license_file, env=env)
    assert done.returncode == 0, done.stderr
    assert "me@example.org" in done.stdout
    assert len(box.calls.entries()) == 1
    key = tmp_path / "c/cloudsimfs/work.key"
    assert json.loads(key.read_text()) == {"key": box.key, "cloudsimfs-address": box.url}
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700

    shown = cloudsimfs("config", "show", "--profile", "work", "--json", env=env)
    found = json.loads(shown.stdout)
    assert found["url"] == {"value": box.url, "source": f"{tmp_path}/c/cloudsimfs/config.toml [profiles.work]"}
    assert found["api-key"] == {"value": "hidden", "source": str(key)}
    assert set(found) == {*SETTINGS, "api-key"}
    assert box.key not in shown.stdout

    assert "removed" in cloudsimfs("logout", "--profile", "work", env=env).stdout
    assert not key.exists()
    assert "no key was stored" in cloudsimfs("logout", "--profile", "work", env=env).stdout


def test_the_keyring_keeps_the_key_where_it_is_installed(limited_box: Sandbox, tmp_path: Path) -> None:
    """A keyring of three functions in a file stands for the desktop's: what is tested is our side."""
    key_file = write_key(tmp_path, limited_box.key)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c")}
    words = ("login", "--url", limited_box.url, "--license", key_file, "--keyring")
    without = cloudsimfs(*words, env=env)
    assert without.returncode == 2
    assert "pip install 'cloudsimfs[keyring]'" in without.stderr
    (tmp_path / "keyring.py").write_text(
        "from pathlib import Path\n"
        f"def place(service, user): return Path({str(tmp_path)!r}, f'{{service}}-{{user}}.secret')\n"
        "def set_password(service, user, key): place(service, user).write_text(key)\n"
        "def get_password(service, user):\n"
        "    return place(service, user).read_text() if place(service, user).exists() else None\n"
        "def delete_password(service, user): place(service, user).unlink()\n"
    )
    env["PYTHONPATH"] = f"{tmp_path}:{Path(config.__file__).parents[1]}"
    done = cloudsimfs(*words, env=env)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "cloudsimfs-default.secret").read_text())
    assert kept == {"key": limited_box.key, "cloudsimfs-address": limited_box.url}
    runs = ("runs", "--profile", "default", "--cache-dir", tmp_path / "cache")
    assert cloudsimfs(*runs, env=env).returncode == 0
    assert f"is for {limited_box.url}" in cloudsimfs(*runs, "--url", "https://evil.example", env=env).stderr
    assert not (tmp_path / "c/cloudsimfs/default.key").exists()
    assert "the system keyring" in cloudsimfs("config", "show", env=env).stdout
    assert "removed" in cloudsimfs("logout", env=env).stdout
    assert not (tmp_path / "cloudsimfs-default.secret").exists()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["mount"], 2, "no mount point"),
        (["mount", "x", "--ttl", "soon"], 2, "--ttl soon"),
        (["mount", "x"], 2, "cloudsimfs login"),
        (["mount", "x", "--url", "ftp://a.example"], 2, "https://host.example"),
        (["mount", "x", "--url", "https://me:pass-word@a.example"], 2, "no user"),
        (["mount", "x", "-o", "tll=1"], 2, "did you mean ttl"),
        (["mount", "x", "--bogus"], 2, "cloudsimfs mount --help"),
        (["mout", "x"], 2, "cloudsimfs --help"),
        (["--bogus"], 2, "cloudsimfs --help"),
        (["umount", "/"], 1, "no cloudsimfs is mounted there"),
        (["refresh"], 2, "cloudsimfs refresh --help"),
        (["status", "/proc"], 1, "not inside a cloudsimfs mount"),
        (["login", "--license", "/nonexistent/license"], 2, "--url"),
        (["completion", "tcsh"], 2, "completion --help"),
    ],
)
def test_bad_input_is_one_line_and_the_documented_status(
    home: Path, words: list[str], status: int, said: str
) -> None:
    done = CliRunner().invoke(main, words, prog_name="cloudsimfs")
    assert done.exit_code == status
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert said in done.stderr
    assert "pass-word" not in done.stderr


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete")])
def test_completion_prints_the_shells_script(shell: str, word: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0, done.stderr
    assert word in done.stdout


def test_bash_completes_options_and_profiles(tmp_path: Path) -> None:
    file = tmp_path / "cloudsimfs/config.toml"
    file.parent.mkdir()
    file.write_text("[profiles.work]\n[profiles.lab]\n")
    program = "from cloudsimfs.cli import main; main(prog_name='cloudsimfs')"

    def completed(line: str) -> str:
        env = {"_CLOUDSIMFS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "3"}
        return run(
            sys.executable, "-c", program, env={**client_environment(), "XDG_CONFIG_HOME": str(tmp_path), **env}
        )

    assert completed("cloudsimfs mount --profile w").split() == ["plain,work"]
    assert completed("cloudsimfs mount --log-level W").split() == ["plain,WARNING"]


# -- on a terminal ---------------------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of its own, 60 columns wide."""

    def __init__(self, *words: str, **env: str) -> None:
        self._end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        kept = {name: value for name, value in client_environment().items() if name not in ("NO_COLOR", "COLUMNS")}
        command = [sys.executable, "-m", "cloudsimfs", *words]
        self._process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**kept, **env},
            start_new_session=True,
        )
        os.close(inner)
        self.shown = ""

    def type(self, prompt: str, text: str) -> None:
        """Wait for a prompt and answer it."""
        while prompt not in self.shown:
            assert self._read(), self.shown
        os.write(self._end, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._end)
        return self._process.wait(patient(30))

    def _read(self) -> str:
        ready, _, _ = select.select([self._end], [], [], 30)
        try:
            said = os.read(self._end, 4096).decode() if ready else ""
        except OSError:
            said = ""  # the other end is closed
        self.shown += said
        return said


def test_login_asks_and_does_not_show_the_key(limited_box: Sandbox, tmp_path: Path) -> None:
    terminal = Terminal("login", XDG_CONFIG_HOME=str(tmp_path))
    terminal.type("Service address", limited_box.url + "\n")
    terminal.type("(not shown)", limited_box.key + "\n")
    assert terminal.end() == 0, terminal.shown
    assert "accepts the key" in terminal.shown.replace("\r\n", " ")
    assert limited_box.key not in terminal.shown
    assert json.loads((tmp_path / "cloudsimfs/default.key").read_text())["key"] == limited_box.key


def test_interrupting_a_question_is_130(tmp_path: Path) -> None:
    terminal = Terminal("login", XDG_CONFIG_HOME=str(tmp_path))
    terminal.type("Service address", "")
    process = terminal._process
    stat = Path(f"/proc/{process.pid}/stat")

    def has_ended() -> bool:
        """Ctrl-C again and again: Python does not see one that comes just before it waits for the answer."""
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "SZ", "it waits")
        process.send_signal(signal.SIGINT)  # the new session has no controlling terminal to do that
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patient(1))
        return process.poll() is not None

    wait_until(has_ended, "the command ends")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown


def test_tables_fit_the_terminal_and_colours_can_be_turned_off() -> None:
    terminal = Terminal("config", "show", CLOUDSIMFS_URL="https://a.example/" + 80 * "x")
    assert terminal.end() == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in terminal.shown.splitlines()[1:]]
    assert max(map(len, lines)) == 60
    assert "\x1b[1m" in terminal.shown
    plain = Terminal("config", "show", NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b" not in plain.shown
