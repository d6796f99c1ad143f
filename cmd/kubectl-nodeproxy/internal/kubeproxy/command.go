package kubeproxy

import (
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// program is the name of kube-proxy's program, and of its containers.
const program = "kube-proxy"

// nodeName replaces references to the node's name in command lines. It is no valid name.
const nodeName = "(the Node's name)"

// commandOf returns the container that runs kube-proxy, and its arguments. ok is false if none
// does. Without a command, that of the image runs: kube-proxy, if the container is named so.
func commandOf(pod *corev1.PodSpec) (container *corev1.Container, args []string, ok bool) {
	for i := range pod.Containers {
		c := &pod.Containers[i]
		words := expanded(c)
		if len(words) > 2 && isShell(words[0]) && words[1] == "-c" {
			words = shellWords(words[2])
		}
		for j, word := range words {
			if path.Base(word) == program {
				return c, words[j+1:], true
			}
		}
		if c.Name == program && len(c.Command) == 0 {
			return c, words, true
		}
	}
	return nil, nil, false
}

func isShell(word string) bool {
	base := path.Base(word)
	return base == "sh" || base == "bash" || base == "dash"
}

// reference is a reference to a variable; $$ escapes it.
var reference = regexp.MustCompile(`\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)`)

// expanded returns command and arguments of a container with variables replaced, as the
// kubelet does. Values that depend on the pod remain references, except the node's name.
func expanded(c *corev1.Container) []string {
	values := map[string]string{}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			values[e.Name] = e.Value
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			values[e.Name] = nodeName
		}
	}
	var out []string
	for _, list := range [][]string{c.Command, c.Args} {
		for _, word := range list {
			out = append(out, reference.ReplaceAllStringFunc(word, func(found string) string {
				if found == "$$" {
					return "$"
				}
				if value, known := values[found[2:len(found)-1]]; known {
					return value
				}
				return found
			}))
		}
	}
	return out
}

// redirection ends the arguments of a command in a script.
var redirection = regexp.MustCompile(`^([0-9]*[<>]|&|\||;)`)

// shellWords splits the first command of a script that runs kube-proxy. It knows quotes, not
// the whole language.
func shellWords(script string) []string {
	var words []string
	var word strings.Builder
	quote, inWord := rune(0), false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range script {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\n\\", r):
			end()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	end()
	started := false
	for i, w := range words {
		started = started || path.Base(w) == program
		if started && redirection.MatchString(w) {
			return words[:i]
		}
	}
	return words
}
