package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the driver: SQLite in pure Go
)

// books are what the jobs write to: a database that remembers the highest fence of each job, and refuses lower ones.
// A fence is the fencing token of a lease: the epoch of a term, or the token of one run.
type books struct{ db *sql.DB }

// errStale says that somebody who has led later has written before.
var errStale = errors.New("refused as stale")

func openBooks(file string) (*books, error) {
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`
		CREATE TABLE jobs (name TEXT PRIMARY KEY, last_fence INTEGER NOT NULL DEFAULT 0, writer TEXT NOT NULL DEFAULT '');
		CREATE TABLE runs (job TEXT NOT NULL, writer TEXT NOT NULL, fence INTEGER NOT NULL);`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &books{db}, nil
}

// The fence is compared and stored in one atomic step. A run that has a token of its own writes once: the token must be
// new. A term has one epoch for all its runs: they may write again, and nobody may who led before.
const (
	claimOnce  = `UPDATE jobs SET last_fence = ?, writer = ? WHERE name = ? AND last_fence < ?`
	claimAgain = `UPDATE jobs SET last_fence = ?, writer = ? WHERE name = ? AND last_fence <= ?`
)

// write records a run of the job, claimed by one of the two statements. The error is errStale if the fence is refused:
// then nothing is written.
func (b *books) write(ctx context.Context, claim, job, writer string, fence uint64) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of no effect after Commit
	if _, err := tx.ExecContext(ctx, `INSERT INTO jobs (name) VALUES (?) ON CONFLICT DO NOTHING`, job); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, claim, int64(fence), writer, job, int64(fence))
	if err != nil {
		return err
	}
	claimed, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if claimed == 0 {
		var last int64
		err := tx.QueryRowContext(ctx, `SELECT last_fence FROM jobs WHERE name = ?`, job).Scan(&last)
		return errors.Join(err, fmt.Errorf("write of %s under fence %d: %w: fence %d has written", writer, fence, errStale, last))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO runs (job, writer, fence) VALUES (?, ?, ?)`, job, writer, int64(fence)); err != nil {
		return err
	}
	return tx.Commit()
}

// floor returns the highest fence that has written for the job: should Redis forget its counter, the next one still
// exceeds it.
func (b *books) floor(ctx context.Context, job string) (uint64, error) {
	var last int64
	err := b.db.QueryRowContext(ctx, `SELECT last_fence FROM jobs WHERE name = ?`, job).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return uint64(last), err
}

// entry is one run as it was recorded.
type entry struct {
	writer string
	fence  uint64
}

// entries returns the runs of a job in the order in which they were recorded.
func (b *books) entries(ctx context.Context, job string) (all []entry, err error) {
	rows, err := b.db.QueryContext(ctx, `SELECT writer, fence FROM runs WHERE job = ? ORDER BY rowid`, job)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.writer, &e.fence); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
