//go:build !race

package optest

const slowed = false
