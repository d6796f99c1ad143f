// Package logging has the programs' log flags and formats.
package logging

import (
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"strings"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Format is how lines look. It implements flag.Value.
type Format string

// The formats, by the names that Kubernetes' own programs use.
const (
	Text Format = "text"
	JSON Format = "json"
)

// String implements flag.Value.
func (f *Format) String() string { return string(*f) }

// Set implements flag.Value.
func (f *Format) Set(value string) error {
	if value != string(Text) && value != string(JSON) {
		return fmt.Errorf("unknown format %q: use text or json", value)
	}
	*f = Format(value)
	return nil
}

// Options configure the log.
type Options struct {
	// Verbosity is that of the most detailed lines.
	Verbosity int
	// Format is Text if empty.
	Format Format
}

// AddFlags adds the flags. detail is what verbosity 2 shows.
func (o *Options) AddFlags(flags *flag.FlagSet, detail string) {
	o.Format = Text
	flags.IntVar(&o.Verbosity, "v", 0, "log `level`: 0 for normal operation, 2 for every "+detail+", 4 for debugging")
	flags.Var(&o.Format, "logging-format", "`format` of the log: text, or json, with one object in each line")
}

// Logger returns a logger that writes to out. Libraries that use klog or the standard library's log
// write to it as well.
func (o *Options) Logger(out io.Writer) logr.Logger {
	if o.Format != JSON {
		log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(o.Verbosity), textlogger.Output(out)))
		klog.SetLogger(log)
		return log
	}
	log, _ := json.NewJSONLogger(logsapi.VerbosityLevel(max(o.Verbosity, 0)), zapcore.Lock(json.AddNopSync(out)), nil, &zapcore.EncoderConfig{ //nolint:gosec // not negative
		TimeKey: "ts", EncodeTime: zapcore.RFC3339NanoTimeEncoder,
		LevelKey: "level", EncodeLevel: level,
		MessageKey: "msg", NameKey: "logger",
		CallerKey: "caller", EncodeCaller: zapcore.ShortCallerEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	})
	klog.SetLogger(log)
	stdlog.SetFlags(0)
	stdlog.SetOutput(lines{log})
	return log
}

// level writes info or error: the verbosity of information is another key, v.
func level(l zapcore.Level, to zapcore.PrimitiveArrayEncoder) {
	if l >= zapcore.ErrorLevel {
		to.AppendString("error")
		return
	}
	to.AppendString("info")
}

// Exit reports the error that a program exits with: as a line of the log if that is JSON, else after the
// program's name.
func (o *Options) Exit(program string, out io.Writer, err error) {
	if o.Format == JSON {
		o.Logger(out).Error(err, "Exiting")
		return
	}
	_, _ = fmt.Fprintf(out, "%s: %v\n", program, err) // the terminal may be closed
}

// lines logs what is written to it.
type lines struct{ log logr.Logger }

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l.log.Info(strings.TrimSpace(string(line)))
	return len(line), nil
}
