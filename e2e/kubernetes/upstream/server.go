// Package fixtures of the upstream tests, with a server that already runs instead of one in the
// process of the test. This file replaces test/integration/fixtures/server.go of
// k8s.io/apiextensions-apiserver.
package fixtures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	serveroptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	servertesting "k8s.io/apiextensions-apiserver/pkg/cmd/server/testing"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The upstream server accepts objects in namespaces that do not exist.
var namespaces = []string{"namespace-1", "namespace-2", "not-the-default", "test"}

var noFinalizers = []byte(`{"metadata":{"finalizers":null}}`)

var errInternals = errors.New("the test needs etcd or internals of the server")

// StartDefaultServer connects to the server of the kubeconfig. The returned function deletes the
// CustomResourceDefinitions that the test left, with their objects.
func StartDefaultServer(t servertesting.Logger, _ ...string) (func(), *rest.Config, *serveroptions.CustomResourceDefinitionsServerOptions, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, nil, nil, err
	}
	config.QPS = -1
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := core.CoreV1().Namespaces().Create(context.TODO(), namespace, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, nil, nil, err
		}
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	before, err := definitions(client)
	if err != nil {
		return nil, nil, nil, err
	}
	tearDown := func() {
		if err := deleteOthers(client, objects, before); err != nil {
			t.Logf("deleting the CustomResourceDefinitions of the test: %v", err)
		}
	}
	return tearDown, config, nil, nil
}

func definitions(client clientset.Interface) (map[string]apiextensionsv1.CustomResourceDefinition, error) {
	list, err := client.ApiextensionsV1().CustomResourceDefinitions().List(context.TODO(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]apiextensionsv1.CustomResourceDefinition{}
	for _, item := range list.Items {
		found[item.Name] = item
	}
	return found, nil
}

func deleteOthers(client clientset.Interface, objects dynamic.Interface, before map[string]apiextensionsv1.CustomResourceDefinition) error {
	return wait.PollUntilContextTimeout(context.TODO(), 50*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		now, err := definitions(client)
		if err != nil {
			return false, err
		}
		complete := true
		for name, definition := range now {
			if _, ok := before[name]; ok {
				continue
			}
			complete = false
			err := client.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			if slices.ContainsFunc(definition.Finalizers, isOfTest) {
				_, _ = client.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, name, types.MergePatchType, noFinalizers, metav1.PatchOptions{})
			}
			removeFinalizers(ctx, objects, definition)
		}
		return complete, nil
	})
}

func isOfTest(finalizer string) bool {
	return finalizer != apiextensionsv1.CustomResourceCleanupFinalizer
}

// removeFinalizers ignores errors: the objects may be gone, and the caller repeats the call.
func removeFinalizers(ctx context.Context, objects dynamic.Interface, definition apiextensionsv1.CustomResourceDefinition) {
	for _, version := range definition.Spec.Versions {
		resource := schema.GroupVersionResource{Group: definition.Spec.Group, Version: version.Name, Resource: definition.Spec.Names.Plural}
		list, err := objects.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, item := range list.Items {
			if len(item.GetFinalizers()) == 0 {
				continue
			}
			client := objects.Resource(resource).Namespace(item.GetNamespace())
			_, _ = client.Patch(ctx, item.GetName(), types.MergePatchType, noFinalizers, metav1.PatchOptions{})
		}
	}
}

// StartDefaultServerWithConfigAccess fails: a running server does not expose its configuration.
func StartDefaultServerWithConfigAccess(servertesting.Logger, ...string) (func(), *rest.Config, apiserver.CompletedConfig, error) {
	return nil, nil, apiserver.CompletedConfig{}, errInternals
}

// StartDefaultServerWithClients is StartDefaultServer with clients.
func StartDefaultServerWithClients(t servertesting.Logger, flags ...string) (func(), clientset.Interface, dynamic.Interface, error) {
	tearDown, config, _, err := StartDefaultServer(t, flags...)
	if err != nil {
		return nil, nil, nil, err
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	return tearDown, client, objects, nil
}

// StartDefaultServerWithClientsAndEtcd fails: a server need not use etcd.
func StartDefaultServerWithClientsAndEtcd(servertesting.Logger, ...string) (func(), clientset.Interface, dynamic.Interface, *clientv3.Client, string, error) {
	return nil, nil, nil, nil, "", errInternals
}

// IntegrationEtcdServers returns no server.
func IntegrationEtcdServers() []string {
	return nil
}
