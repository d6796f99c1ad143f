package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var (
		o       options
		archive string
		created int64
	)
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&archive, "archive", "", "`file` to write")
	flags.StringVar(&o.name, "name", "", "`name` of the image with registry and tag")
	flags.StringVar(&o.program, "program", "", "static `file` that the image runs")
	flags.StringVar(&o.root, "root", "", "`directory` with the root file system below the program; empty: none")
	flags.StringVar(&o.user, "user", "", "`UID:GID` that the program runs as; empty: root")
	flags.StringVar(&o.architecture, "architecture", "", "`GOARCH` of the program")
	flags.StringVar(&o.labels.title, "title", "", "what the image is called")
	flags.StringVar(&o.labels.description, "description", "", "what it is, in a sentence")
	flags.StringVar(&o.labels.version, "version", "", "version of the program")
	flags.StringVar(&o.labels.revision, "revision", "", "commit that the program was built from")
	flags.Int64Var(&created, "created", 0, "time of the image in `seconds` since 1970; that of the commit, as now would differ each time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.labels.created = time.Unix(created, 0).UTC()
	image, err := newImage(o)
	if err != nil {
		return err
	}
	size, err := write(archive, o.name, image)
	if err != nil {
		return err
	}
	id, err := image.ConfigName()
	if err != nil {
		return fmt.Errorf("read what was written: %w", err)
	}
	fmt.Printf("%-32s %5.1f MB, %5.1f MB compressed  %s  %s\n",
		archive, float64(size.unpacked)/1e6, float64(size.compressed)/1e6, o.name, id)
	return nil
}
