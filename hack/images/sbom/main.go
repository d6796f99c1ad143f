package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var (
		s       subject
		out     string
		created int64
	)
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	flags.StringVar(&s.archive, "archive", "", "`file` that is described; its SHA-256 is in the bill")
	flags.StringVar((*string)(&s.kind), "type", string(cyclonedx.ComponentTypeApplication), "`type` of the component: application or container")
	flags.StringVar(&s.name, "name", "", "what is described")
	flags.StringVar(&s.version, "version", "", "its version")
	flags.StringVar(&s.program, "program", "", "`file` of the Go program in the archive")
	flags.StringVar(&s.root, "root", "", "`directory` with the root file system below the program; empty: none")
	flags.StringVar(&out, "out", "", "`file` to write")
	flags.Int64Var(&created, "created", 0, "time of the bill in `seconds` since 1970; that of the commit, as now would differ each time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s.created = time.Unix(created, 0).UTC()
	bom, err := newBOM(s)
	if err != nil {
		return fmt.Errorf("describe %s: %w", s.archive, err)
	}
	return write(out, bom)
}

// write fails if the file cannot be written whole.
func write(path string, bom *cyclonedx.BOM) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	encoder := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	if err := errors.Join(encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6), file.Close()); err != nil {
		return fmt.Errorf("write the bill of materials %s: %w", path, err)
	}
	return nil
}
