// Program that compares the discovery and OpenAPI documents of a server in protobuf with those in JSON.
// Kubernetes' types and gnostic decode both forms.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	openapi "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	discovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	text       = "application/json"
	protobuf   = "application/vnd.kubernetes.protobuf"
	aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	openapiV3  = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	// Documents above this size take seconds to parse.
	limit = 1 << 20
)

type server struct {
	client *http.Client
	host   string
}

// Message of Kubernetes, which decodes itself.
type message interface {
	Unmarshal([]byte) error
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err)
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	must(err)
	host, _, err := rest.DefaultServerUrlFor(config)
	must(err)
	s := server{client, strings.TrimSuffix(host.String(), "/")}

	compare[meta.APIVersions](s, "/api", "")
	compare[meta.APIResourceList](s, "/api/v1", "")
	groups := compare[meta.APIGroupList](s, "/apis", "")
	check(len(groups.Groups) > 5, "%d groups", len(groups.Groups))
	for _, group := range groups.Groups {
		compare[meta.APIGroup](s, "/apis/"+group.Name, "")
		for _, version := range group.Versions {
			list := compare[meta.APIResourceList](s, "/apis/"+version.GroupVersion, "")
			check(len(list.APIResources) > 0, "%s has no resources", version.GroupVersion)
		}
	}
	fmt.Println("ok groups")
	for _, path := range []string{"/api", "/apis"} {
		list := compare[discovery.APIGroupDiscoveryList](s, path, aggregated)
		check(len(list.Items) > 0 && len(list.Items[0].Versions[0].Resources) > 0, "%s is empty", path)
		inText, _ := s.get(path, text+aggregated, "")
		tag := inText.Header.Get("ETag")
		inProtobuf, _ := s.get(path, protobuf+aggregated, "")
		check(tag != "" && inProtobuf.Header.Get("ETag") == tag, "ETag of %s: %v", path, inProtobuf.Header)
		check(inProtobuf.Header.Get("Vary") == "Accept", "Vary of %s: %v", path, inProtobuf.Header)
		known, body := s.get(path, protobuf+aggregated, tag)
		check(known.StatusCode == 304 && len(body) == 0 && known.Header.Get("Content-Type") == "", "known %s: %v", path, known)
	}
	fmt.Println("ok aggregated")
	documents(s)
	fmt.Println("ok openapi")
}

// Compares both forms of a document. Returns the document.
func compare[T any](s server, path, form string) *T {
	response, inText := s.get(path, text+form, "")
	check(response.StatusCode == 200, "%s: %s", path, inText)
	expected, found := new(T), new(T)
	must(json.Unmarshal(inText, expected))

	response, body := s.get(path, protobuf+form, "")
	check(response.StatusCode == 200 && response.Header.Get("Content-Type") == protobuf+form, "%s: %v", path, response)
	body, hasPrefix := bytes.CutPrefix(body, []byte("k8s\x00"))
	check(hasPrefix, "%s has no prefix", path)
	var envelope runtime.Unknown
	must(envelope.Unmarshal(body))
	must(any(found).(message).Unmarshal(envelope.Raw))
	any(found).(runtime.Object).GetObjectKind().SetGroupVersionKind(envelope.GroupVersionKind())
	// The API version of the core group's documents is empty in both forms.
	check(equality.Semantic.DeepEqual(expected, found), "%s%s\nin JSON: %+v\nin protobuf: %+v", path, form, expected, found)
	return found
}

// Compares the OpenAPI documents of all group versions.
func documents(s server) {
	_, body := s.get("/openapi/v3", openapiV3, "")
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	must(json.Unmarshal(body, &index))
	count := 0
	for path, item := range index.Paths {
		response, inText := s.get(item.ServerRelativeURL, text, "")
		if len(inText) > limit {
			continue
		}
		tag := response.Header.Get("ETag")
		expected, err := openapi.ParseDocument(inText)
		must(err)
		unquote(expected)
		for _, accept := range []string{openapiV3, strings.Replace(openapiV3, ".v1.0", "@v1.0", 1)} {
			response, body = s.get(item.ServerRelativeURL, accept, "")
			found := &openapi.Document{}
			must(proto.Unmarshal(body, found))
			unquote(found)
			check(response.Header.Get("Content-Type") == openapiV3 && response.Header.Get("ETag") == tag, "%s: %v", path, response)
			check(proto.Equal(expected, found), "%s differs in JSON and protobuf", path)
		}
		known, _ := s.get("/openapi/v3/"+path, openapiV3, tag)
		check(known.StatusCode == 304, "known %s: %v", path, known)
		count++
	}
	check(count > 5, "%d documents", count)
}

// Converts the values of extensions from YAML to JSON. YAML quotes the same text in several ways.
func unquote(document *openapi.Document) {
	must(protorange.Range(document.ProtoReflect(), func(values protopath.Values) error {
		found, isMessage := values.Index(-1).Value.Interface().(protoreflect.Message)
		if !isMessage {
			return nil
		}
		if value, isAny := found.Interface().(*openapi.Any); isAny {
			converted, err := yaml.YAMLToJSON([]byte(value.Yaml))
			must(err)
			value.Yaml = string(converted)
		}
		return nil
	}))
}

func (s server) get(path, accept, tag string) (*http.Response, []byte) {
	request, err := http.NewRequest(http.MethodGet, s.host+path, nil)
	must(err)
	request.Header.Set("Accept", accept)
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	response, err := s.client.Do(request)
	must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(err)
	return response, body
}

func must(err error) {
	check(err == nil, "%v", err)
}

func check(holds bool, format string, parts ...any) {
	if !holds {
		fmt.Printf(format+"\n", parts...)
		os.Exit(1)
	}
}
