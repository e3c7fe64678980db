-- What was used, for whoever bills it.

-- +goose Up
-- The position of the newest batch; its row is what those queue for who write one, so that
-- the order of positions is that of commits, and who has read up to one has missed none.
CREATE TABLE usage_positions (
	id       INTEGER PRIMARY KEY CHECK (id = 1),
	position BIGINT NOT NULL
);
INSERT INTO usage_positions (id, position) VALUES (1, 0);

-- A batch is added to usage_hours with its row here, and so once.
CREATE TABLE usage_batches (
	position   BIGINT PRIMARY KEY,
	replica    TEXT COLLATE "C" NOT NULL,
	sequence   BIGINT NOT NULL,
	written_at BIGINT NOT NULL,
	content    TEXT NOT NULL, -- JSON
	UNIQUE (replica, sequence)
);
CREATE INDEX usage_batches_age ON usage_batches (written_at);

CREATE TABLE usage_hours (
	account         TEXT COLLATE "C" NOT NULL,
	hour            BIGINT NOT NULL,
	class           INTEGER NOT NULL,
	requests        BIGINT NOT NULL,
	request_bytes   BIGINT NOT NULL,
	response_bytes  BIGINT NOT NULL,
	heartbeat_bytes BIGINT NOT NULL,
	tail_ms         BIGINT NOT NULL,
	refused         BIGINT NOT NULL,
	chunks          BIGINT NOT NULL,
	PRIMARY KEY (account, hour, class)
);
CREATE INDEX usage_hours_age ON usage_hours (hour);
