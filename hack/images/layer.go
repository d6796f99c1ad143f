package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// packDirectory writes a directory as a layer. Only names, contents and modes count:
// all belongs to root and is as old as time, so that the layer does not depend on
// who made it and when. fs.WalkDir goes in the order of names.
func packDirectory(to io.Writer, directory string) error {
	out := tar.NewWriter(to)
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{Name: path, Mode: permissions(info.Mode()), Format: tar.FormatGNU}
		switch {
		case info.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, path+"/"
			return out.WriteHeader(header)
		case info.Mode()&fs.ModeSymlink != 0:
			header.Typeflag = tar.TypeSymlink
			if header.Linkname, err = root.Readlink(path); err != nil {
				return err
			}
			return out.WriteHeader(header)
		case info.Mode().IsRegular():
			return packFile(out, header, filepath.Join(directory, path))
		default:
			return fmt.Errorf("%s is not a file, directory or link", path)
		}
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// packProgram writes a layer of one file, in the root directory.
func packProgram(to io.Writer, program string) error {
	out := tar.NewWriter(to)
	header := &tar.Header{Name: filepath.Base(program), Mode: 0o755, Format: tar.FormatGNU}
	if err := packFile(out, header, program); err != nil {
		return err
	}
	return out.Close()
}

func packFile(out *tar.Writer, header *tar.Header, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = out.Write(content)
	return err
}

// permissions are those of chmod, with the bits for set-user-ID and the like.
func permissions(mode fs.FileMode) int64 {
	out := int64(mode.Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			out |= value
		}
	}
	return out
}
