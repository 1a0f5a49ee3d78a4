// Program that uses the clients of client-go with protobuf only: a server that answers in JSON fails.
// It also compares each object with its JSON form.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

const (
	protobuf  = "application/vnd.kubernetes.protobuf"
	namespace = "client-go"
	limit     = 30 * time.Second
)

// Clients of a server.
type clients struct {
	config  *rest.Config
	typed   kubernetes.Interface
	json    kubernetes.Interface
	crds    crdclient.Interface
	dynamic dynamic.Interface
	objects metadata.Interface
}

// Transport that counts answers in protobuf, and records the first one in another form.
type counter struct {
	next     http.RoundTripper
	answers  *atomic.Int64
	unwanted *atomic.Value
}

func (c counter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	found := response.Header.Get("Content-Type")
	if strings.HasPrefix(found, protobuf) {
		c.answers.Add(1)
	} else {
		c.unwanted.CompareAndSwap(nil, fmt.Sprintf("%s %s: %s", request.Method, request.URL, found))
	}
	return response, err
}

var (
	answers  atomic.Int64
	unwanted atomic.Value
)

func connect() clients {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(err)
	config.QPS, config.Burst = -1, 0
	binary := rest.CopyConfig(config)
	binary.ContentType, binary.AcceptContentTypes = protobuf, protobuf
	binary.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return counter{next, &answers, &unwanted}
	})
	text := rest.CopyConfig(config)
	text.ContentType, text.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return clients{
		config:  config,
		typed:   kubernetes.NewForConfigOrDie(binary),
		json:    kubernetes.NewForConfigOrDie(text),
		crds:    crdclient.NewForConfigOrDie(binary),
		dynamic: dynamic.NewForConfigOrDie(config),
		objects: metadata.NewForConfigOrDie(config),
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := connect()
	steps := []struct {
		name string
		run  func(context.Context, clients)
	}{
		{"objects", objects},
		{"lists", lists},
		{"errors", faults},
		{"reviews", reviews},
		{"certificates", signing},
		{"definitions", definitions},
		{"informers", watchObjects},
		{"watch-errors", expiredWatch},
		{"leader-election", election},
		{"recorders", recorders},
		{"equal-forms", equalForms},
	}
	for _, step := range steps {
		step.run(ctx, c)
		fmt.Println("ok", step.name)
	}
	if found := unwanted.Load(); found != nil {
		fail("an answer was not in protobuf: %v", found)
	}
	check(answers.Load() > 50, "only %d answers in protobuf", answers.Load())
	must(c.typed.CoreV1().Namespaces().Delete(ctx, namespace, meta.DeleteOptions{}))
	until("the deletion of the namespace", func() bool {
		_, err := c.typed.CoreV1().Namespaces().Get(ctx, namespace, meta.GetOptions{})
		return errors.IsNotFound(err)
	})
	fmt.Println("ok namespace-deleted")
}

// Creates, reads, changes and deletes objects.
func objects(ctx context.Context, c clients) {
	core1 := c.typed.CoreV1()
	made, err := core1.Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}}, meta.CreateOptions{})
	must(err)
	check(made.Status.Phase == core.NamespaceActive && made.UID != "" && !made.CreationTimestamp.IsZero(), "namespace: %v", made)
	until("the default service account", func() bool {
		_, err := core1.ServiceAccounts(namespace).Get(ctx, "default", meta.GetOptions{})
		return err == nil
	})
	until("the authority of the server", func() bool {
		found, err := core1.ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", meta.GetOptions{})
		return err == nil && strings.Contains(found.Data["ca.crt"], "BEGIN CERTIFICATE")
	})

	maps := core1.ConfigMaps(namespace)
	immutable := false
	own := &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Name: "a", Labels: map[string]string{"of": "test", "empty": ""}, Annotations: map[string]string{"n": "1"}, Finalizers: []string{"example.com/hold"}},
		Data:       map[string]string{"text": "ä", "empty": ""},
		BinaryData: map[string][]byte{"bytes": {0, 255, 1}},
		Immutable:  &immutable,
	}
	stored, err := maps.Create(ctx, own, meta.CreateOptions{})
	must(err)
	check(equality.Semantic.DeepEqual(stored.Data, own.Data) && equality.Semantic.DeepEqual(stored.BinaryData, own.BinaryData), "data: %v", stored)
	check(len(stored.ManagedFields) == 1 && len(stored.ManagedFields[0].FieldsV1.Raw) > 0, "owners: %v", stored.ManagedFields)
	stored.Data["more"] = "b"
	stored.Finalizers = nil
	updated, err := maps.Update(ctx, stored, meta.UpdateOptions{})
	must(err)
	check(updated.Data["more"] == "b" && updated.ResourceVersion != stored.ResourceVersion && len(updated.Finalizers) == 0, "update: %v", updated)
	check(updated.Immutable != nil && !*updated.Immutable, "immutable: %v", updated.Immutable)
	patched, err := maps.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"data": {"more": null}}`), meta.PatchOptions{})
	must(err)
	check(len(patched.Data) == 2, "patch: %v", patched)
	applied, err := maps.Apply(ctx, coreapply.ConfigMap("applied", namespace).WithData(map[string]string{"a": "b"}), meta.ApplyOptions{FieldManager: "test"})
	must(err)
	check(applied.Data["a"] == "b", "apply: %v", applied)

	secret, err := core1.Secrets(namespace).Create(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{GenerateName: "s-"}, StringData: map[string]string{"k": "v"}}, meta.CreateOptions{})
	must(err)
	check(string(secret.Data["k"]) == "v" && secret.Type == core.SecretTypeOpaque && secret.Name != "s-", "secret: %v", secret)
	uid := secret.UID
	must(core1.Secrets(namespace).Delete(ctx, secret.Name, meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &uid}}))

	duration := int64(3600)
	token, err := core1.ServiceAccounts(namespace).CreateToken(ctx, "default", &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &duration}}, meta.CreateOptions{})
	must(err)
	check(token.Status.Token != "" && token.Status.ExpirationTimestamp.After(time.Now()), "token: %v", token.Status.ExpirationTimestamp)

	role := &rbac.Role{ObjectMeta: meta.ObjectMeta{Name: "r"}, Rules: []rbac.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"a"}}}}
	kept, err := c.typed.RbacV1().Roles(namespace).Create(ctx, role, meta.CreateOptions{})
	must(err)
	check(equality.Semantic.DeepEqual(kept.Rules, role.Rules), "role: %v", kept)
	binding := &rbac.RoleBinding{ObjectMeta: meta.ObjectMeta{Name: "r"}, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "r"}, Subjects: []rbac.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: namespace}}}
	bound, err := c.typed.RbacV1().RoleBindings(namespace).Create(ctx, binding, meta.CreateOptions{})
	must(err)
	check(bound.RoleRef.Name == "r" && bound.Subjects[0].Name == "default", "binding: %v", bound)

	now, holder := meta.NewMicroTime(time.Now().Truncate(time.Microsecond)), "me"
	lease, err := c.typed.CoordinationV1().Leases(namespace).Create(ctx, &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: "l"}, Spec: coordination.LeaseSpec{HolderIdentity: &holder, RenewTime: &now}}, meta.CreateOptions{})
	must(err)
	check(lease.Spec.RenewTime.Equal(&now), "lease: %v is not %v", lease.Spec.RenewTime, now)

	admin, err := c.typed.RbacV1().ClusterRoles().Get(ctx, "admin", meta.GetOptions{})
	must(err)
	check(admin.AggregationRule != nil && len(admin.AggregationRule.ClusterRoleSelectors) > 0, "admin: %v", admin.AggregationRule)
}

func lists(ctx context.Context, c clients) {
	maps := c.typed.CoreV1().ConfigMaps(namespace)
	for i := range 5 {
		_, err := maps.Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("page-%d", i), Labels: map[string]string{"page": "yes"}}}, meta.CreateOptions{})
		must(err)
	}
	options := meta.ListOptions{Limit: 2, LabelSelector: "page=yes"}
	var names []string
	for {
		page, err := maps.List(ctx, options)
		must(err)
		check(page.ResourceVersion != "", "list without a version")
		for _, item := range page.Items {
			names = append(names, item.Name)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	check(len(names) == 5, "pages: %v", names)
	must(maps.DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{LabelSelector: "page=yes"}))
	left, err := maps.List(ctx, meta.ListOptions{LabelSelector: "page=yes"})
	must(err)
	check(len(left.Items) == 0, "left: %v", left.Items)
}

// Errors are Status objects in protobuf.
func faults(ctx context.Context, c clients) {
	maps := c.typed.CoreV1().ConfigMaps(namespace)
	_, err := maps.Get(ctx, "missing", meta.GetOptions{})
	check(errors.IsNotFound(err) && err.Error() == `configmaps "missing" not found`, "%v", err)
	_, err = maps.Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "a"}}, meta.CreateOptions{})
	check(errors.IsAlreadyExists(err), "%v", err)
	_, err = maps.Update(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "a", ResourceVersion: "1"}}, meta.UpdateOptions{})
	check(errors.IsConflict(err), "%v", err)
	_, err = maps.Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "B_"}, Data: map[string]string{"a b": ""}}, meta.CreateOptions{})
	status, isStatus := err.(errors.APIStatus)
	check(isStatus && errors.IsInvalid(err) && len(status.Status().Details.Causes) == 2, "%v", err)
	_, err = maps.Apply(ctx, coreapply.ConfigMap("applied", namespace).WithData(map[string]string{"a": "c"}), meta.ApplyOptions{FieldManager: "other"})
	check(errors.IsConflict(err) && strings.Contains(err.Error(), `conflict with "test"`), "%v", err)
}

func reviews(ctx context.Context, c clients) {
	access, err := c.typed.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: namespace}}}, meta.CreateOptions{})
	must(err)
	check(access.Status.Allowed, "access: %v", access.Status)
	other, err := c.typed.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{User: "nobody", Extra: map[string]authorization.ExtraValue{"a": {"b"}}, ResourceAttributes: &authorization.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: namespace}}}, meta.CreateOptions{})
	must(err)
	check(!other.Status.Allowed && other.Spec.Extra["a"][0] == "b", "access of another user: %v", other)
	rules, err := c.typed.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorization.SelfSubjectRulesReview{Spec: authorization.SelfSubjectRulesReviewSpec{Namespace: namespace}}, meta.CreateOptions{})
	must(err)
	check(len(rules.Status.ResourceRules) > 0 && len(rules.Status.NonResourceRules) > 0, "rules: %v", rules.Status)
	self, err := c.typed.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, meta.CreateOptions{})
	must(err)
	check(self.Status.UserInfo.Username != "" && len(self.Status.UserInfo.Groups) > 0, "self: %v", self)
	token, err := c.typed.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: "wrong"}}, meta.CreateOptions{})
	must(err)
	check(!token.Status.Authenticated, "token: %v", token.Status)
}

func signing(ctx context.Context, c clients) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "client-go"}}, key)
	must(err)
	body := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	requests := c.typed.CertificatesV1().CertificateSigningRequests()
	seconds := int32(3600)
	made, err := requests.Create(ctx, &certificates.CertificateSigningRequest{ObjectMeta: meta.ObjectMeta{Name: "client-go"}, Spec: certificates.CertificateSigningRequestSpec{Request: body, SignerName: certificates.KubeAPIServerClientSignerName, ExpirationSeconds: &seconds, Usages: []certificates.KeyUsage{certificates.UsageClientAuth}}}, meta.CreateOptions{})
	must(err)
	check(string(made.Spec.Request) == string(body) && made.Spec.Username != "", "request: %v", made)
	made.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: core.ConditionTrue, Reason: "Test", Message: "approved"}}
	approved, err := requests.UpdateApproval(ctx, made.Name, made, meta.UpdateOptions{})
	must(err)
	check(len(approved.Status.Conditions) == 1 && !approved.Status.Conditions[0].LastUpdateTime.IsZero(), "approval: %v", approved.Status)
	must(requests.Delete(ctx, made.Name, meta.DeleteOptions{}))
}

var gizmos = schema.GroupVersionResource{Group: "client-go.example.com", Version: "v1", Resource: "gizmos"}

// Definitions are in protobuf, their objects in JSON, and metadata of objects in protobuf.
func definitions(ctx context.Context, c clients) {
	keep, minimum := true, 0.5
	schemaOf := apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{
		"status": {Type: "object", Default: &apiextensions.JSON{Raw: []byte(`{"seen":-1}`)}, Properties: map[string]apiextensions.JSONSchemaProps{"seen": {Type: "integer"}}},
		"spec": {Type: "object", XPreserveUnknownFields: &keep, Properties: map[string]apiextensions.JSONSchemaProps{
			"size":  {Type: "number", Minimum: &minimum, Default: &apiextensions.JSON{Raw: []byte("1")}, Enum: []apiextensions.JSON{{Raw: []byte("1")}, {Raw: []byte("2.5")}}},
			"tags":  {Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &apiextensions.JSONSchemaProps{Type: "string"}}},
			"extra": {Type: "object", AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Allows: true, Schema: &apiextensions.JSONSchemaProps{Type: "string", Nullable: true}}},
		}, XValidations: apiextensions.ValidationRules{{Rule: "!has(self.tags) || self.tags.size() < 10", Message: "too many tags"}}},
	}}
	definition := &apiextensions.CustomResourceDefinition{
		ObjectMeta: meta.ObjectMeta{Name: "gizmos.client-go.example.com"},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: gizmos.Group, Scope: apiextensions.NamespaceScoped,
			Names: apiextensions.CustomResourceDefinitionNames{Plural: "gizmos", Kind: "Gizmo"},
			Versions: []apiextensions.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema:                   &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &schemaOf},
				Subresources:             &apiextensions.CustomResourceSubresources{Status: &apiextensions.CustomResourceSubresourceStatus{}},
				AdditionalPrinterColumns: []apiextensions.CustomResourceColumnDefinition{{Name: "Size", Type: "number", JSONPath: ".spec.size"}}}},
		},
	}
	crds := c.crds.ApiextensionsV1().CustomResourceDefinitions()
	made, err := crds.Create(ctx, definition, meta.CreateOptions{})
	must(err)
	check(equality.Semantic.DeepEqual(made.Spec.Versions[0].Schema, definition.Spec.Versions[0].Schema), "schema: %v", made.Spec.Versions[0].Schema)
	until("an established definition", func() bool {
		found, err := crds.Get(ctx, definition.Name, meta.GetOptions{})
		must(err)
		for _, condition := range found.Status.Conditions {
			if condition.Type == apiextensions.Established && condition.Status == apiextensions.ConditionTrue {
				return true
			}
		}
		return false
	})
	gizmo := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "client-go.example.com/v1", "kind": "Gizmo", "metadata": map[string]any{"name": "g"}, "spec": map[string]any{}}}
	until("a served kind", func() bool {
		stored, err := c.dynamic.Resource(gizmos).Namespace(namespace).Create(ctx, gizmo, meta.CreateOptions{})
		if err != nil {
			return false
		}
		seen, _, err := unstructured.NestedInt64(stored.Object, "status", "seen")
		check(err == nil && seen == -1, "default status: %v", stored.Object["status"])
		return true
	})
	partial, err := c.objects.Resource(gizmos).Namespace(namespace).Get(ctx, "g", meta.GetOptions{})
	must(err)
	check(partial.Name == "g" && partial.UID != "", "metadata: %v", partial)
}

// Runs informers of typed clients, of the dynamic client and of metadata.
func watchObjects(ctx context.Context, c clients) {
	stop := make(chan struct{})
	defer close(stop)
	seen := make(chan string, 1000)
	handler := func(source string) cache.ResourceEventHandlerFuncs {
		note := func(event string, object any) {
			if last, isLast := object.(cache.DeletedFinalStateUnknown); isLast {
				object = last.Obj
			}
			found := object.(meta.Object)
			seen <- fmt.Sprintf("%s %s %s", source, event, found.GetName())
		}
		return cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { note("added", object) },
			UpdateFunc: func(_, object any) { note("updated", object) },
			DeleteFunc: func(object any) { note("deleted", object) },
		}
	}
	typed := informers.NewSharedInformerFactoryWithOptions(c.typed, 0, informers.WithNamespace(namespace))
	_, err := typed.Core().V1().ConfigMaps().Informer().AddEventHandler(handler("typed"))
	must(err)
	typed.Start(stop)
	untyped := dynamicinformer.NewFilteredDynamicSharedInformerFactory(c.dynamic, 0, namespace, nil)
	_, err = untyped.ForResource(gizmos).Informer().AddEventHandler(handler("dynamic"))
	must(err)
	untyped.Start(stop)
	partial := metadatainformer.NewFilteredSharedInformerFactory(c.objects, 0, namespace, nil)
	_, err = partial.ForResource(gizmos).Informer().AddEventHandler(handler("metadata"))
	must(err)
	partial.Start(stop)
	for kind, synced := range typed.WaitForCacheSync(ctx.Done()) {
		check(synced, "%v", kind)
	}
	untyped.WaitForCacheSync(ctx.Done())
	partial.WaitForCacheSync(ctx.Done())
	expect(seen, "typed added a", "dynamic added g", "metadata added g")

	maps := c.typed.CoreV1().ConfigMaps(namespace)
	_, err = maps.Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "w"}}, meta.CreateOptions{})
	must(err)
	expect(seen, "typed added w")
	_, err = maps.Update(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "w"}, Data: map[string]string{"a": "b"}}, meta.UpdateOptions{})
	must(err)
	expect(seen, "typed updated w")
	must(maps.Delete(ctx, "w", meta.DeleteOptions{}))
	expect(seen, "typed deleted w")
	objects := c.dynamic.Resource(gizmos).Namespace(namespace)
	_, err = objects.Patch(ctx, "g", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), meta.PatchOptions{})
	must(err)
	expect(seen, "dynamic updated g", "metadata updated g")
	must(c.objects.Resource(gizmos).Namespace(namespace).Delete(ctx, "g", meta.DeleteOptions{}))
	expect(seen, "dynamic deleted g", "metadata deleted g")
	cached, err := typed.Core().V1().ConfigMaps().Lister().ConfigMaps(namespace).Get("a")
	must(err)
	direct, err := maps.Get(ctx, "a", meta.GetOptions{})
	must(err)
	check(equality.Semantic.DeepEqual(cached, direct), "cached: %v\ndirect: %v", cached, direct)
}

// A watch from a version that does not exist anymore ends with an error in protobuf.
func expiredWatch(ctx context.Context, c clients) {
	bookmarks := true
	seconds := int64(3)
	watch, err := c.typed.CoreV1().ConfigMaps(namespace).Watch(ctx, meta.ListOptions{SendInitialEvents: &bookmarks, ResourceVersionMatch: meta.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	must(err)
	last := ""
	for event := range watch.ResultChan() {
		object := event.Object.(meta.Object)
		last = fmt.Sprintf("%s %s", event.Type, object.GetAnnotations()[meta.InitialEventsAnnotationKey])
		if last == "BOOKMARK true" {
			break
		}
	}
	watch.Stop()
	check(last == "BOOKMARK true", "the last event was %q", last)
}

func election(ctx context.Context, c clients) {
	led := make(chan string, 2)
	candidate := func(name string) (context.CancelFunc, chan struct{}) {
		own, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, "election", nil, c.typed.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
		must(err)
		go func() {
			defer close(done)
			leaderelection.RunOrDie(own, leaderelection.LeaderElectionConfig{
				Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
				Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { led <- name }, OnStoppedLeading: func() {}},
			})
		}()
		return cancel, done
	}
	stopFirst, firstDone := candidate("one")
	check(receive(led) == "one", "another candidate leads")
	stopSecond, secondDone := candidate("two")
	stopFirst()
	<-firstDone
	check(receive(led) == "two", "another candidate leads")
	lease, err := c.typed.CoordinationV1().Leases(namespace).Get(ctx, "election", meta.GetOptions{})
	must(err)
	check(*lease.Spec.HolderIdentity == "two" && *lease.Spec.LeaseTransitions == 1, "lease: %v", lease.Spec)
	stopSecond()
	<-secondDone
}

func recorders(ctx context.Context, c clients) {
	object, err := c.typed.CoreV1().ConfigMaps(namespace).Get(ctx, "a", meta.GetOptions{})
	must(err)
	old := record.NewBroadcaster()
	old.StartRecordingToSink(&corev1.EventSinkImpl{Interface: c.typed.CoreV1().Events("")})
	recorder := old.NewRecorder(scheme.Scheme, core.EventSource{Component: "client-go"})
	for range 3 {
		recorder.Event(object, core.EventTypeWarning, "Repeated", "again")
	}
	until("a counted event", func() bool {
		found, err := c.typed.CoreV1().Events(namespace).List(ctx, meta.ListOptions{FieldSelector: "reason=Repeated"})
		must(err)
		return len(found.Items) == 1 && found.Items[0].Count == 3 && !found.Items[0].FirstTimestamp.IsZero()
	})
	old.Shutdown()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.typed.EventsV1()})
	must(broadcaster.StartRecordingToSinkWithContext(ctx))
	broadcaster.NewRecorder(scheme.Scheme, "client-go").Eventf(object, nil, core.EventTypeNormal, "Reported", "Testing", "note %d", 1)
	until("an event with a note", func() bool {
		found, err := c.typed.EventsV1().Events(namespace).List(ctx, meta.ListOptions{FieldSelector: "reason=Reported"})
		must(err)
		return len(found.Items) == 1 && found.Items[0].Note == "note 1" && found.Items[0].Regarding.Name == "a" && !found.Items[0].EventTime.IsZero()
	})
	broadcaster.Shutdown()
}

// Compares lists in protobuf with the same lists in JSON.
func equalForms(ctx context.Context, c clients) {
	all := meta.ListOptions{}
	compare := func(kind string, list func(kubernetes.Interface) (runtime.Object, error)) {
		until("equal forms of "+kind, func() bool {
			binary, err := list(c.typed)
			must(err)
			text, err := list(c.json)
			must(err)
			binaryList, textList := binary.(meta.ListInterface), text.(meta.ListInterface)
			if binaryList.GetResourceVersion() != textList.GetResourceVersion() {
				return false
			}
			binary.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			text.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			check(equality.Semantic.DeepEqual(binary, text), "%s in protobuf:\n%#v\nin JSON:\n%#v", kind, binary, text)
			return true
		})
	}
	compare("namespaces", func(k kubernetes.Interface) (runtime.Object, error) { return k.CoreV1().Namespaces().List(ctx, all) })
	compare("configmaps", func(k kubernetes.Interface) (runtime.Object, error) { return k.CoreV1().ConfigMaps("").List(ctx, all) })
	compare("secrets", func(k kubernetes.Interface) (runtime.Object, error) { return k.CoreV1().Secrets("").List(ctx, all) })
	compare("serviceaccounts", func(k kubernetes.Interface) (runtime.Object, error) {
		return k.CoreV1().ServiceAccounts("").List(ctx, all)
	})
	compare("events", func(k kubernetes.Interface) (runtime.Object, error) { return k.CoreV1().Events("").List(ctx, all) })
	compare("events.k8s.io", func(k kubernetes.Interface) (runtime.Object, error) { return k.EventsV1().Events("").List(ctx, all) })
	compare("roles", func(k kubernetes.Interface) (runtime.Object, error) { return k.RbacV1().Roles("").List(ctx, all) })
	compare("rolebindings", func(k kubernetes.Interface) (runtime.Object, error) {
		return k.RbacV1().RoleBindings("").List(ctx, all)
	})
	compare("clusterroles", func(k kubernetes.Interface) (runtime.Object, error) { return k.RbacV1().ClusterRoles().List(ctx, all) })
	compare("clusterrolebindings", func(k kubernetes.Interface) (runtime.Object, error) {
		return k.RbacV1().ClusterRoleBindings().List(ctx, all)
	})

	// Every definition of the server, among them large ones.
	text := crdclient.NewForConfigOrDie(c.config)
	binary, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().List(ctx, all)
	must(err)
	json, err := text.ApiextensionsV1().CustomResourceDefinitions().List(ctx, all)
	must(err)
	check(len(binary.Items) > 0 && len(binary.Items) == len(json.Items), "definitions: %d and %d", len(binary.Items), len(json.Items))
	for i := range binary.Items {
		check(equality.Semantic.DeepEqual(binary.Items[i].Spec, json.Items[i].Spec), "definition %s in protobuf:\n%#v\nin JSON:\n%#v", json.Items[i].Name, binary.Items[i].Spec, json.Items[i].Spec)
		check(equality.Semantic.DeepEqual(binary.Items[i].Status, json.Items[i].Status), "status of definition %s", json.Items[i].Name)
	}
}

// Waits for the texts, in any order, among others.
func expect(seen chan string, texts ...string) {
	left := map[string]bool{}
	for _, text := range texts {
		left[text] = true
	}
	deadline := time.After(limit)
	for len(left) > 0 {
		select {
		case text := <-seen:
			delete(left, text)
		case <-deadline:
			fail("not seen: %v", left)
		}
	}
}

func receive(texts chan string) string {
	select {
	case text := <-texts:
		return text
	case <-time.After(limit):
		return "nothing"
	}
}

func until(description string, holds func() bool) {
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, limit, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		fail("timed out while waiting for %s", description)
	}
}

func check(holds bool, format string, values ...any) {
	if !holds {
		fail(format, values...)
	}
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, values ...any) {
	panic(fmt.Sprintf(format, values...))
}
