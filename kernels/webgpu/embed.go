// Package webgpu holds the WebGPU kernels: WGSL, and the small preprocessor that makes variants of
// them. examples/webgpu-page runs the same files in a browser, with the same preprocessor in
// JavaScript.
package webgpu

import (
	"embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed *.wgsl
var files embed.FS

// Source returns the WGSL of a kernel for some definitions.
//
// A line that starts with # is a directive. "#include name" takes in a file, once. "#for X in
// words" repeats what follows for each word, as $X. "#if word", "#if word == word" and
// "#if word != word" keep what follows, or what stands behind "#elif ..." or "#else"; a lone word
// is true where it is not empty. "#end" ends these. $NAME is a definition of capital letters,
// ${NAME$X} one whose name is put together, which may be missing and is empty then.
func Source(name string, definitions map[string]string) (string, error) {
	p := preprocessor{definitions: definitions, included: map[string]bool{}}
	if err := p.include(name); err != nil {
		return "", fmt.Errorf("kernels/webgpu: %s.wgsl: %w", name, err)
	}
	return p.out.String(), nil
}

type preprocessor struct {
	definitions map[string]string
	included    map[string]bool
	out         strings.Builder
}

func (p *preprocessor) include(name string) error {
	if p.included[name] {
		return nil
	}
	p.included[name] = true
	text, err := files.ReadFile(name + ".wgsl")
	if err != nil {
		return err
	}
	rest, err := p.block(strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil, true)
	if err == nil && len(rest) > 0 {
		return fmt.Errorf("%q without a beginning", rest[0])
	}
	return err
}

// block handles lines up to the directive that ends them, which it returns with what follows.
// Nothing is written where the block is not live.
func (p *preprocessor) block(lines []string, loop map[string]string, live bool) ([]string, error) {
	for len(lines) > 0 {
		line := lines[0]
		directive, argument, _ := strings.Cut(line, " ")
		var err error
		switch directive {
		case "#include":
			if lines = lines[1:]; live {
				err = p.include(argument)
			}
		case "#for":
			lines, err = p.repeat(lines, loop, live)
		case "#if":
			lines, err = p.choose(lines, loop, live)
		case "#elif", "#else", "#end":
			return lines, nil
		default:
			lines = lines[1:]
			if live {
				err = p.write(line, loop)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (p *preprocessor) repeat(lines []string, loop map[string]string, live bool) ([]string, error) {
	words := strings.Fields(lines[0]) // "#for X in ..."
	if len(words) < 4 || words[2] != "in" {
		return nil, fmt.Errorf("%q", lines[0])
	}
	list, err := p.substitute(strings.Join(words[3:], " "), loop)
	if err != nil {
		return nil, err
	}
	rest, err := p.block(lines[1:], loop, false)
	if err != nil {
		return nil, err
	}
	for _, item := range strings.Fields(list) {
		inner := map[string]string{words[1]: item}
		for name, value := range loop {
			inner[name] = value
		}
		if live {
			if _, err := p.block(lines[1:], inner, true); err != nil {
				return nil, err
			}
		}
	}
	return ended(rest)
}

func (p *preprocessor) choose(lines []string, loop map[string]string, live bool) ([]string, error) {
	open := live // no branch was taken yet
	for {
		directive, condition, _ := strings.Cut(lines[0], " ")
		holds := open
		if directive != "#else" && open {
			words, err := p.substitute(condition, loop)
			if err != nil {
				return nil, err
			}
			holds = isTrue(strings.Fields(words))
		}
		open = open && !holds
		rest, err := p.block(lines[1:], loop, holds)
		if err != nil {
			return nil, err
		}
		if len(rest) == 0 || directive == "#else" || rest[0] == "#end" {
			return ended(rest)
		}
		lines = rest
	}
}

func ended(lines []string) ([]string, error) {
	if len(lines) == 0 || lines[0] != "#end" {
		return nil, fmt.Errorf("no #end")
	}
	return lines[1:], nil
}

// isTrue decides "word", "word == word" and "word != word", of which words may be empty.
func isTrue(words []string) bool {
	for i, word := range words {
		if word == "==" || word == "!=" {
			return (strings.Join(words[:i], " ") == strings.Join(words[i+1:], " ")) == (word == "==")
		}
	}
	return len(words) > 0
}

var (
	plain = regexp.MustCompile(`\$[A-Z]+(_[A-Z]+)*`)
	made  = regexp.MustCompile(`\$\{[A-Z0-9_]*\}`)
)

// substitute replaces names, first those in names that are put together.
func (p *preprocessor) substitute(text string, loop map[string]string) (string, error) {
	var err error
	text = plain.ReplaceAllStringFunc(text, func(name string) string {
		if value, ok := loop[name[1:]]; ok {
			return value
		}
		value, ok := p.definitions[name[1:]]
		if !ok {
			err = fmt.Errorf("%s is not defined", name)
		}
		return value
	})
	return made.ReplaceAllStringFunc(text, func(name string) string { return p.definitions[name[2:len(name)-1]] }), err
}

func (p *preprocessor) write(line string, loop map[string]string) error {
	text, err := p.substitute(line, loop)
	p.out.WriteString(text + "\n")
	return err
}
