// Package wording bounds texts for logs and condition messages: errors and examples come from other
// programs and may have any length, bytes and sentences.
package wording
