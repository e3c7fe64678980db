package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxTLSFile bounds the content of one file, in bytes: a certificate's chain has a few
// thousand.
const MaxTLSFile = 1 << 20

var errFileTooLarge = fmt.Errorf("a file of TLS has more than %d bytes", MaxTLSFile)

// TLSFile is what there is to tell of a file without its content.
type TLSFile struct {
	Name       string
	Size       int64 // of the content, in bytes
	ModifiedAt time.Time
}

// sealedName binds what is sealed to the file's name.
func sealedName(name string) string { return "tls/" + name }

// PutTLSFile keeps a file under a name, sealed, in place of the one before. The error wraps
// ErrUnavailable.
func (s *Store) PutTLSFile(ctx context.Context, name string, content []byte) error {
	if len(content) > MaxTLSFile {
		return errFileTooLarge
	}
	sealed, err := s.seal.seal(sealedName(name), content)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, err := s.clock(ctx, s.write)
	if err != nil {
		return failed("keep a file of TLS", err)
	}
	return failed("keep a file of TLS", run(ctx, s.write, `INSERT INTO tls_files (name, sealed, size, modified_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, size = excluded.size, modified_at = excluded.modified_at`,
		name, sealed, len(content), micros(now)))
}

// TLSFile reads a file's content. The error wraps ErrNotFound, or ErrUnavailable.
func (s *Store) TLSFile(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var sealed []byte
	if err := s.read.QueryRowContext(ctx, `SELECT sealed FROM tls_files WHERE name = $1`, name).Scan(&sealed); err != nil {
		return nil, failed("read a file of TLS", err)
	}
	content, err := s.seal.open(sealedName(name), sealed)
	return content, failed("read a file of TLS", err)
}

// TLSFiles lists the file of a name, and those whose names begin with it and a slash, in
// order. "" is all. The error wraps ErrUnavailable.
func (s *Store) TLSFiles(ctx context.Context, name string) ([]TLSFile, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	from, to := below(name)
	files, err := list(ctx, s.read, func(r row) (TLSFile, error) {
		var f TLSFile
		var at int64
		err := r.Scan(&f.Name, &f.Size, &at)
		f.ModifiedAt = moment(at)
		return f, err
	}, `SELECT name, size, modified_at FROM tls_files WHERE name = $1 OR (name >= $2 AND name < $3) ORDER BY name`, name, from, to)
	return files, failed("list the files of TLS", err)
}

// DeleteTLSFiles deletes what TLSFiles would list. The error wraps ErrUnavailable.
func (s *Store) DeleteTLSFiles(ctx context.Context, name string) error {
	if name == "" {
		return errors.New("delete the files of TLS: no name")
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	from, to := below(name)
	return failed("delete the files of TLS", run(ctx, s.write, `DELETE FROM tls_files WHERE name = $1 OR (name >= $2 AND name < $3)`, name, from, to))
}

// below are the bounds of names that begin with a name and a slash: at or behind from,
// before to.
func below(name string) (from, to string) {
	if name == "" {
		return "", end
	}
	return name + "/", name + "0" // what follows the slash
}
