-- Streams that clients make and delete at the stream's own URL (streams.lifecycle: protocol).

-- +goose Up
-- Made so: what made it is the client's to repeat, and nobody else's to make.
ALTER TABLE streams ADD COLUMN protocol BOOLEAN NOT NULL DEFAULT FALSE;
-- How many of their requests were begun for the row, how many of those have no answer, and
-- the last one whose outcome is settled without an answer.
ALTER TABLE streams ADD COLUMN attempts BIGINT NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN unanswered BIGINT NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN settled BIGINT NOT NULL DEFAULT 0;
-- The incarnation that an unanswered DELETE is for, or '*': whatever comes up.
ALTER TABLE streams ADD COLUMN doomed TEXT NOT NULL DEFAULT '';
-- Who sent the last PUT, and the last DELETE that may have deleted it (JSON), for the record
-- of what those turn out to have done.
ALTER TABLE streams ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
ALTER TABLE streams ADD COLUMN doomed_by TEXT NOT NULL DEFAULT '';
-- Seconds without use after which Ursula lets it go, and when to look whether it has; 0 = never.
ALTER TABLE streams ADD COLUMN ttl BIGINT NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN look_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX streams_unanswered ON streams (busy_until) WHERE unanswered <> 0;
CREATE INDEX streams_looks ON streams (look_at) WHERE look_at <> 0;
