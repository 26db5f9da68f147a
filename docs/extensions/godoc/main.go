// Command godoc prints the documentation of a Go package as Markdown: the page of the site that has
// the Go reference.
//
//	go run ./docs/extensions/godoc FOLDER
package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./docs/extensions/godoc FOLDER")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "godoc:", err)
		os.Exit(1)
	}
}

// page is where the documentation of a package goes.
type page struct {
	io.Writer
	files *token.FileSet
	docs  *doc.Package
}

func write(w io.Writer, folder string) error {
	p := page{Writer: w, files: token.NewFileSet()}
	found, err := build.ImportDir(folder, 0)
	if err != nil {
		return err
	}
	var parsed []*ast.File
	for _, names := range [][]string{found.GoFiles, found.CgoFiles, found.TestGoFiles, found.XTestGoFiles} {
		for _, name := range names {
			file, err := parser.ParseFile(p.files, filepath.Join(folder, name), nil, parser.ParseComments)
			if err != nil {
				return err
			}
			parsed = append(parsed, file)
		}
	}
	if p.docs, err = doc.NewFromFiles(p.files, parsed, found.Name); err != nil {
		return err
	}
	p.text(p.docs.Doc)
	p.examples(p.docs.Examples)
	p.values("## Constants\n\n", p.docs.Consts)
	p.values("## Variables\n\n", p.docs.Vars)
	p.functions("##", p.docs.Funcs)
	for _, each := range p.docs.Types {
		fmt.Fprintf(p, "## type %s\n\n", each.Name)
		p.symbol(each.Decl, each.Doc, each.Examples)
		p.values("", each.Consts)
		p.values("", each.Vars)
		p.functions("###", each.Funcs)
		p.functions("###", each.Methods)
	}
	return nil
}

func (p page) values(heading string, values []*doc.Value) {
	for _, each := range values {
		fmt.Fprint(p, heading)
		heading = ""
		p.symbol(each.Decl, each.Doc, nil)
	}
}

func (p page) functions(level string, functions []*doc.Func) {
	for _, each := range functions {
		receiver := ""
		if each.Recv != "" {
			receiver = "(" + each.Recv + ") "
		}
		fmt.Fprintf(p, "%s func %s%s\n\n", level, receiver, each.Name)
		each.Decl.Body = nil
		p.symbol(each.Decl, each.Doc, each.Examples)
	}
}

func (p page) symbol(declaration ast.Decl, text string, examples []*doc.Example) {
	p.code(declaration)
	p.text(text)
	p.examples(examples)
}

func (p page) examples(examples []*doc.Example) {
	for _, each := range examples {
		fmt.Fprint(p, "An example:\n\n")
		p.code(each.Code)
		if each.Output != "" {
			fmt.Fprintf(p, "It prints:\n\n```text\n%s```\n\n", each.Output)
		}
	}
}

// code prints a declaration, or the statements of an example's block.
func (p page) code(node ast.Node) {
	var text strings.Builder
	if err := format.Node(&text, p.files, node); err != nil {
		text.WriteString(err.Error())
	}
	lines := text.String()
	if _, ok := node.(*ast.BlockStmt); ok {
		lines = strings.ReplaceAll(strings.Trim(lines, "{}\n"), "\n\t", "\n")
		lines = strings.TrimPrefix(lines, "\t")
	}
	fmt.Fprintf(p, "```go\n%s\n```\n\n", strings.TrimSpace(lines))
}

func (p page) text(text string) {
	printer := comment.Printer{HeadingLevel: 2, HeadingID: func(*comment.Heading) string { return "" }}
	fmt.Fprintf(p, "%s\n", printer.Markdown(p.docs.Parser().Parse(text)))
}
