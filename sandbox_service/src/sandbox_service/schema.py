"""The job database: its tables, and the counters that keep a lease as cheap with 50,000 waiting jobs as with 100.

`jobs` is the record; everything else follows from it by triggers or by the statement next to it.

    counts, outcomes   how many jobs are in each state, and ended with each outcome
    owners             per resource class, priority and key: how many wait and run, and the number of the last lease
                       (leases have even numbers; who is new begins just before the last, so that among equals the one
                       who has waited since then is next, and one who comes again and again overtakes nobody)
    shares             the same, below that per run label; only while the run has jobs that wait or run
    labels             to find jobs by label
    artifacts          what programs left behind: names of files in `artifact_store`
"""

import sqlite3

from openmle_gym.errors import StoreError

SCHEMA_VERSION = 3
_OF_OWNER = "owner = NEW.owner AND resource_class = NEW.resource_class AND priority = NEW.priority"
_MOVED = """\
    queued = queued + (NEW.state = 'queued') - (OLD.state = 'queued'),
    running = running + (NEW.state = 'running') - (OLD.state = 'running')"""
_BY_OWNER = "CREATE INDEX jobs_by_owner ON jobs (owner, seq);"
_SCHEMA = f"""
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    idempotency_key TEXT,
    resource_class TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    worker_id TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    completed_at REAL,
    deadline REAL,
    outcome TEXT,
    labels TEXT NOT NULL,
    error TEXT,
    shed INTEGER NOT NULL DEFAULT 0,
    request TEXT NOT NULL,
    result TEXT,
    UNIQUE (owner, idempotency_key)
);
CREATE INDEX jobs_of_a_share ON jobs (resource_class, priority, owner, run, seq) WHERE state = 'queued';
CREATE INDEX jobs_of_a_lane ON jobs (resource_class, priority, seq) WHERE state = 'queued';
CREATE INDEX jobs_by_deadline ON jobs (deadline) WHERE state = 'queued' AND deadline IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state, seq);
{_BY_OWNER}
CREATE INDEX jobs_to_shed ON jobs (completed_at) WHERE completed_at IS NOT NULL AND shed = 0;

CREATE TABLE counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL);
INSERT INTO counts VALUES ('queued', 0), ('running', 0), ('completed', 0), ('failed', 0), ('cancelled', 0);
CREATE TABLE outcomes (outcome TEXT PRIMARY KEY, jobs INTEGER NOT NULL);
CREATE TABLE owners (
    owner TEXT NOT NULL,
    resource_class TEXT NOT NULL,
    priority INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    running INTEGER NOT NULL,
    served INTEGER NOT NULL,
    PRIMARY KEY (owner, resource_class, priority)
) WITHOUT ROWID;
CREATE TABLE shares (
    owner TEXT NOT NULL,
    resource_class TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run TEXT NOT NULL,
    queued INTEGER NOT NULL,
    running INTEGER NOT NULL,
    served INTEGER NOT NULL,
    PRIMARY KEY (owner, resource_class, priority, run)
) WITHOUT ROWID;
CREATE INDEX shares_in_turn ON shares (owner, resource_class, priority, running, served) WHERE queued > 0;
CREATE TABLE labels (key TEXT NOT NULL, value TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (key, value, seq))
    WITHOUT ROWID;
CREATE TABLE artifacts (
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    PRIMARY KEY (seq, name)
) WITHOUT ROWID;
CREATE INDEX artifacts_by_content ON artifacts (sha256);

CREATE TRIGGER a_job_is_counted AFTER INSERT ON jobs BEGIN
    UPDATE counts SET jobs = jobs + 1 WHERE state = NEW.state;
END;
CREATE TRIGGER an_open_job_joins_its_share AFTER INSERT ON jobs WHEN NEW.state IN ('queued', 'running') BEGIN
    INSERT INTO owners
        SELECT NEW.owner, NEW.resource_class, NEW.priority, NEW.state = 'queued', NEW.state = 'running',
            (SELECT max(coalesce(max(served), 0), 0) - 1 FROM owners)
        WHERE true ON CONFLICT DO UPDATE SET queued = queued + excluded.queued, running = running + excluded.running;
    INSERT INTO shares
        SELECT owner, resource_class, priority, NEW.run, NEW.state = 'queued', NEW.state = 'running', served - 1
        FROM owners WHERE {_OF_OWNER}
        ON CONFLICT DO UPDATE SET queued = queued + excluded.queued, running = running + excluded.running;
END;
CREATE TRIGGER a_change_is_counted AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
    UPDATE counts SET jobs = jobs - 1 WHERE state = OLD.state;
    UPDATE counts SET jobs = jobs + 1 WHERE state = NEW.state;
    UPDATE owners SET {_MOVED} WHERE {_OF_OWNER};
    UPDATE shares SET {_MOVED} WHERE {_OF_OWNER} AND run = NEW.run;
    DELETE FROM shares WHERE {_OF_OWNER} AND run = NEW.run AND queued = 0 AND running = 0;
END;
CREATE TRIGGER an_outcome_is_counted AFTER UPDATE OF outcome ON jobs WHEN NEW.outcome IS NOT NULL BEGIN
    INSERT INTO outcomes VALUES (NEW.outcome, 1) ON CONFLICT DO UPDATE SET jobs = jobs + 1;
END;
PRAGMA user_version = {SCHEMA_VERSION};
"""
_FROM_VERSION_1 = f"""
ALTER TABLE jobs RENAME TO old_jobs;
DROP INDEX jobs_to_lease;
DROP INDEX jobs_by_state;
DROP TRIGGER a_job_is_counted;
DROP TRIGGER a_change_is_counted;
DROP TABLE counts;
{_SCHEMA}
INSERT INTO jobs
    SELECT seq, job_id, owner, idempotency_key, json_extract(request, '$.resource_type'), priority,
        coalesce(json_extract(labels, '$.run'), ''), state, attempts, fence, worker_id, created_at, started_at,
        completed_at, NULL, json_extract(result, '$.result'), labels, error, 0, request, result
    FROM old_jobs ORDER BY seq;
INSERT INTO labels SELECT l.key, l.value, old_jobs.seq FROM old_jobs, json_each(old_jobs.labels) AS l;
INSERT INTO outcomes SELECT outcome, count(*) FROM jobs WHERE outcome IS NOT NULL GROUP BY outcome;
DROP TABLE old_jobs;
"""
_FROM_VERSION_2 = f"""
{_BY_OWNER}
PRAGMA user_version = {SCHEMA_VERSION};
"""


def prepare(sql: sqlite3.Connection, place: object) -> None:
    """Makes the tables in a new file, brings an older one up to date, and leaves a current one as it is.

    Raises:
        StoreError: The file belongs to another program, or to a newer version of this one.
    """
    (version,) = sql.execute("PRAGMA user_version").fetchone()
    (tables,) = sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == SCHEMA_VERSION:
        return
    if (version, tables) == (0, 0):
        sql.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
    elif version in (1, 2):
        sql.executescript(f"BEGIN;{_FROM_VERSION_1 if version == 1 else _FROM_VERSION_2}COMMIT;")
    else:
        raise StoreError(f"{place}: has schema version {version}; this program reads versions 1 to {SCHEMA_VERSION}")
