package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// errScheme says what a URL begins with.
var errScheme = fmt.Errorf(`%w: store.url begins with "sqlite:" or "postgres:"`, ErrUnusable)

// CheckURL says whether a URL names a store, without asking for it. The error wraps
// ErrUnusable and holds no password.
func CheckURL(url string) error {
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "sqlite":
		_, err := sqlitePath(url)
		return err
	case "postgres", "postgresql":
		_, err := postgresConfig(url)
		return err
	default:
		return errScheme
	}
}

// Ping asks whether a store could be opened, and changes nothing: a server has to take the
// user, a file has to be a store or none yet and needs its directory. ctx bounds it. The error wraps ErrUnusable or
// ErrUnavailable and holds no password.
func Ping(ctx context.Context, url string) error {
	if err := CheckURL(url); err != nil {
		return err
	}
	if strings.HasPrefix(url, "sqlite:") {
		path, err := sqlitePath(url)
		if err != nil {
			return err
		}
		return lookAt(ctx, path)
	}
	config, err := postgresConfig(url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return failed("connect", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // it was asked already
	}()
	return failed("ask", conn.Ping(ctx))
}

// postgresConfig reads the URL of a server. The parser's words may hold parts of it, and so
// of the password: they are not repeated.
func postgresConfig(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf(`%w: store.url is no URL of Postgres; it is like "postgres://user:password@host:5432/database?sslmode=verify-full", and what a name or a password has of other characters than letters and digits is written as %%XX`, ErrUnusable)
	}
	if config.ConnectTimeout == 0 || config.ConnectTimeout > connectTime {
		config.ConnectTimeout = connectTime
	}
	if _, ok := config.RuntimeParams["application_name"]; !ok {
		config.RuntimeParams["application_name"] = "sluice"
	}
	return config, nil
}
