package store

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	sealingKeyBytes = 32
	maxKeyFile      = 256 // bytes
	// checkedText is sealed in a new store, under its own name, so that another sealing
	// key is found out at once.
	checkedText = "sealing_check"
)

var errSealed = errors.New("it was sealed under another auth.sealing_key")

// sealer seals with AES-GCM. What is sealed is bound to an id, so that it cannot be put in
// the place of something else.
type sealer struct {
	aead   cipher.AEAD
	random io.Reader
}

func newSealer(key []byte, random io.Reader) (*sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead: aead, random: random}, nil
}

// seal gives the nonce and what is sealed. The error is that of the randomness.
func (s *sealer) seal(id string, plain []byte) ([]byte, error) {
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	if _, err := io.ReadFull(s.random, nonce); err != nil {
		return nil, err
	}
	return s.aead.Seal(nonce, nonce, plain, []byte(id)), nil
}

func (s *sealer) open(id string, sealed []byte) ([]byte, error) {
	if len(sealed) < s.aead.NonceSize() {
		return nil, errSealed
	}
	nonce, rest := sealed[:s.aead.NonceSize()], sealed[s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, rest, []byte(id))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}

// useSealingKey holds the key against what the store was sealed with; a new store is
// sealed with it from now on.
func (s *Store) useSealingKey(ctx context.Context, key []byte) error {
	var err error
	if s.seal, err = newSealer(key, s.random); err != nil {
		return err
	}
	check, err := s.seal.seal(checkedText, []byte(checkedText))
	if err != nil {
		return err
	}
	// Of several replicas that start at once, the first one's is kept.
	if err := run(ctx, s.write, `UPDATE meta SET sealing_check = $1 WHERE id = 1 AND sealing_check IS NULL`, check); err != nil {
		return err
	}
	stored, err := s.sealingCheck(ctx)
	if err != nil {
		return err
	}
	if plain, err := s.seal.open(checkedText, stored); err != nil || !bytes.Equal(plain, []byte(checkedText)) {
		return fmt.Errorf("%w: %w: set that one again. Where it is lost, delete all rows of signing_keys and tls_files, set sealing_check in meta to NULL and start again; every token that was issued is void then, and certificates are ordered anew", ErrUnusable, errSealed)
	}
	return nil
}

// sealingCheck is nil in a new store.
func (s *Store) sealingCheck(ctx context.Context) ([]byte, error) {
	var stored []byte
	return stored, s.write.QueryRowContext(ctx, `SELECT sealing_check FROM meta WHERE id = 1`).Scan(&stored)
}

// sealingKey is the one given, else that of the file, which is made where the store is
// new.
func (s *Store) sealingKey(ctx context.Context, o Options, path string) ([]byte, error) {
	if o.SealingKey != nil {
		return o.SealingKey, nil
	}
	text, err := readSmall(path)
	if err == nil {
		key, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil || len(key) != sealingKeyBytes {
			return nil, fmt.Errorf("%w: %s holds no sealing key, which is %d bytes in base64: restore a copy", ErrUnusable, path, sealingKeyBytes)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if check, err := s.sealingCheck(ctx); err != nil || check != nil {
		if err == nil {
			err = fmt.Errorf("%w: %s, the sealing key of this store, is not there: restore it, or set auth.sealing_key", ErrUnusable, path)
		}
		return nil, err
	}
	key := make([]byte, sealingKeyBytes)
	if _, err := io.ReadFull(s.random, key); err != nil {
		return nil, err
	}
	if err := writeDurably(path, []byte(base64.StdEncoding.EncodeToString(key)+"\n")); err != nil {
		return nil, fmt.Errorf("write the sealing key: %w", err)
	}
	return key, nil
}

func readSmall(path string) (content []byte, err error) {
	f, err := os.Open(path) //nolint:gosec // the operator's path
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// writeDurably writes a file that only its owner may read, all of it or nothing, and
// returns once it is on the disk.
func writeDurably(path string, content []byte) (err error) {
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // the operator's path
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDirectory(path)
}

// syncDirectory returns once the name of a file is on the disk.
func syncDirectory(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
