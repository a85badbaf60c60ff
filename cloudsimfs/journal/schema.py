"""The tables of the journal. A column's comment says what it holds; `rows` has them as values."""

JOURNAL = "journal.db"
SCHEMA_VERSION = 2

SCHEMA = """
CREATE TABLE IF NOT EXISTS file (          -- the last closed state of each file that is not known to be listed
  ino        INTEGER PRIMARY KEY,          -- the inode number, also after a rename
  path       TEXT NOT NULL UNIQUE,         -- where it is now
  state      TEXT NOT NULL CHECK (state IN (
               'closed',                   -- to be uploaded
               'stored')),                 -- uploaded, not yet seen in a listing
  generation INTEGER NOT NULL,
  uploaded   INTEGER NOT NULL,             -- 1: an upload under this path has begun since base was listed
  base       TEXT,                         -- JSON entry under this path before our upload; NULL: none
  stored_ns  INTEGER,                      -- the store's clock at our last upload; NULL: not known
  backing    TEXT NOT NULL,                -- name of the backing file in the cache directory
  size       INTEGER NOT NULL,             -- bytes; what the backing file has beyond is a draft's
  source     TEXT,                         -- JSON entry that absent ranges are fetched from; NULL: all is local
  etag       TEXT,                         -- the source's ETag, if a reply has told it
  remote_end INTEGER NOT NULL,             -- bytes beyond this are local (0 if source is NULL)
  present    TEXT NOT NULL                 -- JSON list of [start, end) below remote_end that the backing file holds
);
CREATE TABLE IF NOT EXISTS sent (          -- uploads of a file since base was listed, if the service may have them
  ino        INTEGER NOT NULL,
  generation INTEGER NOT NULL,             -- of the inode; 0: of another that had the name before
  size       INTEGER NOT NULL,             -- bytes
  answered   INTEGER NOT NULL              -- ns of the store's clock; 1: it told none; 0: the outcome is not known
);
CREATE TRIGGER IF NOT EXISTS file_dropped AFTER DELETE ON file BEGIN
  DELETE FROM sent WHERE ino = old.ino;
END;
CREATE TABLE IF NOT EXISTS draft (         -- bytes written since the last close; the names as in file
  ino        INTEGER NOT NULL,
  path       TEXT NOT NULL,
  generation INTEGER NOT NULL,
  uploaded   INTEGER NOT NULL,
  base       TEXT,
  since_ns   INTEGER NOT NULL,             -- when it was first written to
  kept       INTEGER NOT NULL,             -- beside the names, which show something else (`rows.Kept`); 0: it is not
  backing    TEXT NOT NULL,                -- the same as the closed state's while bytes were only appended to that
  size       INTEGER NOT NULL,             -- when the row was made; the backing file has the true one
  source     TEXT,
  etag       TEXT,
  remote_end INTEGER NOT NULL,
  present    TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS live_draft ON draft (ino) WHERE NOT kept;
CREATE TABLE IF NOT EXISTS draft_base (    -- what else a draft is based on, if uploads from here are a part of that
  ino        INTEGER PRIMARY KEY,
  stored_ns  INTEGER,                      -- as in file
  sent       TEXT NOT NULL                 -- JSON list of what the table sent has of a file
);
CREATE TRIGGER IF NOT EXISTS draft_dropped AFTER DELETE ON draft WHEN NOT old.kept BEGIN
  DELETE FROM draft_base WHERE ino = old.ino;
END;
CREATE TRIGGER IF NOT EXISTS draft_kept AFTER UPDATE OF kept ON draft BEGIN
  DELETE FROM draft_base WHERE ino = old.ino;
END;
CREATE TABLE IF NOT EXISTS unproved (      -- files whose row speaks of bytes that may not be on the disk yet
  ino        INTEGER PRIMARY KEY,
  round      INTEGER NOT NULL,             -- the round of fsync that puts them there
  boot       TEXT NOT NULL,                -- the start of the machine since which they were written
  path       TEXT,                         -- from here on: the last closed state that is on the disk, as in file
  backing    TEXT,                         -- NULL: there is none
  size       INTEGER,
  source     TEXT,
  etag       TEXT,
  remote_end INTEGER,
  present    TEXT
);
CREATE TRIGGER IF NOT EXISTS unproved_dropped AFTER DELETE ON file BEGIN
  DELETE FROM unproved WHERE ino = old.ino;
END;
CREATE TABLE IF NOT EXISTS folder (        -- folders made here that the service does not have (it has no mkdir)
  path       TEXT PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS gone (          -- names removed here: a delete to be sent, or a listing still to catch up
  path       TEXT PRIMARY KEY,
  entry      TEXT,                         -- JSON entry that was removed; NULL: whatever is stored there
  is_dir     INTEGER NOT NULL,
  below      TEXT NOT NULL,                -- JSON list of the entries under a removed folder; one that was uploaded
                                           -- from here is a list of its own, with the columns of gone_base
  after      TEXT NOT NULL,                -- JSON list of inode numbers to be stored first (rename)
  done       INTEGER NOT NULL              -- 1: the service has acknowledged the delete
);
CREATE TABLE IF NOT EXISTS gone_base (     -- what a file is based on that takes a removed name; no row: gone.entry
  path       TEXT PRIMARY KEY,
  entry      TEXT,                         -- the columns as in file, and sent as in draft_base
  uploaded   INTEGER NOT NULL,
  stored_ns  INTEGER,
  sent       TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS gone_dropped AFTER DELETE ON gone BEGIN
  DELETE FROM gone_base WHERE path = old.path;
END;
CREATE TABLE IF NOT EXISTS launch (        -- of an older version; now the account's book has them (`runs.book`)
  id         INTEGER PRIMARY KEY,
  request    TEXT NOT NULL,                -- JSON [cpu, ram, script, folder, nopre, mesh]
  token      TEXT,                         -- the `key=` it was asked for with; NULL: none
  known      TEXT NOT NULL,                -- JSON list of the runs there were before the POST
  run        INTEGER                       -- the run it started; NULL: the POST may or may not have arrived
);
CREATE TABLE IF NOT EXISTS attr (          -- attributes the service has no place for
  path       TEXT PRIMARY KEY,
  ino INTEGER, perm INTEGER, uid INTEGER, gid INTEGER, mtime_ns INTEGER, atime_ns INTEGER, -- NULL: the default
  version    TEXT                          -- JSON [id, size, mtime_ns] the times belong to; NULL: any
);
CREATE TABLE IF NOT EXISTS handover (      -- all of this is being handed to another key (`adoption`)
  id         TEXT PRIMARY KEY,
  target     TEXT NOT NULL                 -- the directory of that key
);
CREATE TABLE IF NOT EXISTS identity (      -- one row: which journal this is (`stamp`)
  id         TEXT NOT NULL,
  count      INTEGER NOT NULL              -- grows with each mount and each fsync
);
CREATE TABLE IF NOT EXISTS adopted (       -- the handovers that were taken in here
  id         TEXT PRIMARY KEY
);
"""

EVERYTHING = (
    "file",
    "sent",
    "draft",
    "draft_base",
    "unproved",
    "folder",
    "gone",
    "gone_base",
    "launch",
    "attr",
    "handover",
)
"""What belongs to the key whose directory it is: all tables but `identity` and `adopted`."""

FILES = "SELECT * FROM file ORDER BY rowid"
SENT = "SELECT ino, generation, size, answered FROM sent ORDER BY rowid"
IDENTITY = "SELECT id, count FROM identity"
DRAFT_BASES = "SELECT ino, stored_ns, sent FROM draft_base"
DRAFTS = "SELECT * FROM draft ORDER BY rowid"
