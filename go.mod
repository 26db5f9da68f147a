module github.com/epigrad/epigrad

go 1.26.0

require (
	github.com/go-python/gopy v0.4.10
	github.com/stretchr/testify v1.11.1
	golang.org/x/sys v0.49.0
	gonum.org/v1/gonum v0.17.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
