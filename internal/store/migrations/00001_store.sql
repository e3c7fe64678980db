-- One text for SQLite and Postgres. Times are microseconds since 1970, 0 = none. Ids and
-- names are compared byte by byte (COLLATE "C"; SQLite does so by itself, and the words are
-- taken out for it). Nothing here is ever changed: a later need is a later file.

-- +goose Up
CREATE TABLE meta (
	id            INTEGER PRIMARY KEY CHECK (id = 1),
	revision      BIGINT NOT NULL, -- of the newest change; its row is what writers queue for
	sealing_check BYTEA            -- a known text, sealed: tells another sealing key
);
INSERT INTO meta (id, revision) VALUES (1, 0);

CREATE TABLE accounts (
	id                  TEXT COLLATE "C" PRIMARY KEY,
	state               TEXT NOT NULL,
	requests_per_second BIGINT, -- NULL: the default of whoever asks
	burst               BIGINT,
	open_tails          BIGINT,
	uploads             BIGINT,
	upload_bytes        BIGINT,
	request_bytes       BIGINT,
	declared            BOOLEAN NOT NULL,
	created_at          BIGINT NOT NULL,
	deleted_at          BIGINT NOT NULL DEFAULT 0 -- the row stays, and with it the id taken
);

CREATE TABLE api_keys (
	id           TEXT COLLATE "C" PRIMARY KEY,
	account      TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
	name         TEXT COLLATE "C" NOT NULL,
	access       TEXT NOT NULL,
	acts_as      TEXT NOT NULL,
	all_streams  BOOLEAN NOT NULL,
	patterns     TEXT NOT NULL, -- with a space between two; none and not all_streams: reaches nothing
	declared     BOOLEAN NOT NULL,
	created_at   BIGINT NOT NULL,
	expires_at   BIGINT NOT NULL,
	revoked_at   BIGINT NOT NULL DEFAULT 0,
	last_used_at BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX api_keys_name ON api_keys (account, name) WHERE revoked_at = 0;
CREATE INDEX api_keys_of_account ON api_keys (account, id);
CREATE INDEX api_keys_declared ON api_keys (id) WHERE declared;

-- What a key is known by: its newest secret (ends_at = 0), and the one before it.
CREATE TABLE key_secrets (
	digest  BYTEA PRIMARY KEY,
	key_id  TEXT COLLATE "C" NOT NULL REFERENCES api_keys (id),
	hint    TEXT NOT NULL,
	ends_at BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX key_secrets_newest ON key_secrets (key_id) WHERE ends_at = 0;
CREATE UNIQUE INDEX key_secrets_old ON key_secrets (key_id) WHERE ends_at <> 0;

CREATE TABLE streams (
	id           TEXT COLLATE "C" PRIMARY KEY,
	account      TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
	name         TEXT COLLATE "C" NOT NULL,
	content_type TEXT NOT NULL,
	public       BOOLEAN NOT NULL,
	declared     BOOLEAN NOT NULL,
	state        TEXT NOT NULL,
	region       TEXT NOT NULL,
	incarnation  TEXT NOT NULL,
	created_at   BIGINT NOT NULL,
	expires_at   BIGINT NOT NULL,
	busy_until   BIGINT NOT NULL DEFAULT 0,
	UNIQUE (account, name)
);
CREATE INDEX streams_unsettled ON streams (busy_until) WHERE state <> 'active';
CREATE INDEX streams_expiring ON streams (expires_at) WHERE expires_at <> 0 AND state <> 'deleting';
CREATE INDEX streams_declared ON streams (id) WHERE declared;

-- Our own keys, private half included, sealed with AES-GCM.
CREATE TABLE signing_keys (
	id           TEXT COLLATE "C" PRIMARY KEY,
	sealed       BYTEA NOT NULL,
	sign_from    BIGINT NOT NULL,
	sign_until   BIGINT NOT NULL,
	verify_until BIGINT NOT NULL
);

CREATE TABLE cutoffs (
	key_id TEXT COLLATE "C" PRIMARY KEY,
	at     BIGINT NOT NULL, -- while the key lives
	set_at BIGINT NOT NULL
);

CREATE TABLE leases (
	name   TEXT COLLATE "C" PRIMARY KEY,
	holder TEXT NOT NULL,
	until  BIGINT NOT NULL
);

-- The log of changes: every revision from the oldest here to the newest, without a gap.
CREATE TABLE changes (
	revision BIGINT PRIMARY KEY,
	kind     INTEGER NOT NULL,
	key_id   TEXT NOT NULL,
	account  TEXT NOT NULL,
	stream   TEXT NOT NULL,
	made_at  BIGINT NOT NULL
);
