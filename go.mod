module github.com/epigrad/epigrad

go 1.26
