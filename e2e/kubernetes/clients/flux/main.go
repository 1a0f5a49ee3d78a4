// Program that decodes the Flux objects in the file of the first argument with the types of Flux. An
// unknown field is an error.
package main

import (
	"bytes"
	"fmt"
	"os"

	kustomize "github.com/fluxcd/kustomize-controller/api/v1"
	source "github.com/fluxcd/source-controller/api/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := os.ReadFile(os.Args[1])
	must(err)
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var kind meta.TypeMeta
		must(yaml.Unmarshal(document, &kind))
		switch kind.GroupVersionKind() {
		case source.GroupVersion.WithKind("GitRepository"):
			must(yaml.UnmarshalStrict(document, &source.GitRepository{}))
		case kustomize.GroupVersion.WithKind("Kustomization"):
			var found kustomize.Kustomization
			must(yaml.UnmarshalStrict(document, &found))
			fmt.Println("wait", found.Spec.Wait)
		default:
			must(fmt.Errorf("unknown kind %v", kind))
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
