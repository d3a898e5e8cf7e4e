//go:build race

package redlock_test

// contenders is how many contend for one lease. Lua under the race detector is slow.
const contenders = 20
