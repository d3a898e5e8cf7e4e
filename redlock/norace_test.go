//go:build !race

package redlock_test

const contenders = 50
