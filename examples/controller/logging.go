package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// setLoggers has everything log through one logger, to standard error. The demo itself logs nothing: it tells.
func setLoggers(o options) {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.Level(-1) // V(1)
	}
	log := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if !o.replica {
		log = logr.Discard()
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	redis.SetLogger(redisLogger{log})
}

// redisLogger is a logger as go-redis wants one. What it reports of connections is a detail: whoever
// uses them gets an error.
type redisLogger struct{ log logr.Logger }

func (l redisLogger) Printf(_ context.Context, format string, v ...any) {
	l.log.V(1).Info(fmt.Sprintf(format, v...))
}
