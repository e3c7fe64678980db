-- The record of each change that people, the operator's file or the program made. Texts
-- are '' where there is none, times as in 00001.

-- +goose Up
ALTER TABLE meta ADD COLUMN audit_id BIGINT NOT NULL DEFAULT 0; -- of the newest record

CREATE TABLE audit (
	id            BIGINT PRIMARY KEY, -- rises with the order of changes, with gaps
	at            BIGINT NOT NULL,
	actor         TEXT NOT NULL, -- key, operator, system or file
	actor_key     TEXT COLLATE "C" NOT NULL,
	actor_account TEXT COLLATE "C" NOT NULL,
	account       TEXT COLLATE "C" NOT NULL,
	action        TEXT NOT NULL,
	target        TEXT COLLATE "C" NOT NULL,
	client        TEXT NOT NULL, -- an address
	request_id    TEXT NOT NULL,
	details       TEXT NOT NULL -- JSON; '' = nothing more is to be said
);
CREATE INDEX audit_of_account ON audit (account, id);
CREATE INDEX audit_by_time ON audit (at);
