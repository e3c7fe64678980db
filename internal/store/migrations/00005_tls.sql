-- What an ACME client keeps: its account, certificates with their keys, open challenges.
-- Names are paths with slashes. Content is sealed with AES-GCM.

-- +goose Up
CREATE TABLE tls_files (
	name        TEXT COLLATE "C" PRIMARY KEY,
	sealed      BYTEA NOT NULL,
	size        BIGINT NOT NULL, -- of the content, in bytes
	modified_at BIGINT NOT NULL
);
