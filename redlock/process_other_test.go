//go:build !unix

package redlock_test

func becomeChild() {}
