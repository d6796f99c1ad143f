// Package growth checks that the time of a step grows no faster than its input, such as
// what tenants write.
package growth
