// Package chaos lets candidates in processes of their own compete for one election, on real redis-server processes, while
// a seeded plan kills and freezes both, breaks the network between them and makes the servers' clocks jump. What the
// candidates believe is recorded, and the history checked for linearizability: it must be that of a register that
// an acquisition sets to a higher epoch than it has, and in which a leader that looks finds its own epoch. So no
// two lead at a time, and a later leader has a higher epoch, in real time and over all processes.
//
// The tests have the build tag chaos, and need Linux: make chaos. A seed fixes what goes wrong and when; what comes of
// it is up to the scheduler, so a seed that fails once may need a few runs to fail again.
package chaos
