//! Admission policies: permissions of users, and the status of policies.

use http::Method;
use serde_json::{Value, json};

use super::TestServer;
use super::definitions::until;
use rooflet_testing::ApiResponse;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(server: &TestServer, path: &str, object: Value) {
    let created = server.post(path, &object).await;
    assert_eq!(created.code, 201, "{}", created.body);
}

fn policy(name: &str, validations: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": validations}})
}

#[tokio::test]
async fn policy_decides_by_the_permissions_of_users_and_service_accounts() {
    let server = TestServer::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = |name: &str, resource: &str, verb: &str| json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": [verb]}]});
    let bound = |role: &str, subject: Value| {
        json!({"metadata": {"generateName": "b-"}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}})
    };
    let user = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name});
    create(
        &server,
        &format!("{roles}/roles"),
        role("authors", "configmaps", "create"),
    )
    .await;
    create(
        &server,
        &format!("{roles}/roles"),
        role("keepers", "secrets", "delete"),
    )
    .await;
    for (role, subject) in [
        ("authors", user("alice")),
        ("authors", user("bob")),
        ("keepers", user("bob")),
        (
            "keepers",
            json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"}),
        ),
    ] {
        create(&server, &format!("{roles}/rolebindings"), bound(role, subject)).await;
    }
    let deletes = "group('').resource('secrets').namespace(request.namespace).check('delete').allowed()";
    let validations = json!([
        {"expression": format!("authorizer.{deletes}"), "messageExpression": "request.userInfo.username + ' keeps no Secrets'"},
        {"expression": format!("authorizer.serviceAccount('default', 'robot').{deletes}"), "message": "no robot"},
        {"expression": "authorizer.requestResource.check('create').allowed()", "message": "not created"},
        {"expression": "authorizer.path('/healthz').check('get').allowed()", "message": "no health"},
    ]);
    create(&server, POLICIES, policy("keepers", validations)).await;
    let binding = json!({"metadata": {"name": "keepers"}, "spec": {"policyName": "keepers", "validationActions": ["Deny"]}});
    create(&server, BINDINGS, binding).await;
    let write = async |user: &str, name: &str| -> ApiResponse {
        let headers = [("content-type", "application/json"), ("Impersonate-User", user)];
        let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
        server.send(Method::POST, CONFIG_MAPS, &headers, body).await
    };
    let denied = write("alice", "a").await;
    assert_eq!(
        (denied.code, denied.message()),
        (
            422,
            "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'keepers' with binding 'keepers' denied request: alice \
             keeps no Secrets"
        )
    );
    let allowed = write("bob", "b").await;
    assert_eq!(allowed.code, 201, "{}", allowed.body);
}

#[tokio::test]
async fn status_of_a_policy_has_the_observed_generation_and_warnings() {
    let server = TestServer::start().await;
    let rejected = server
        .post(
            POLICIES,
            &policy("p", json!([{"expression": "request.name == 1"}])),
        )
        .await;
    assert_eq!(rejected.code, 422, "{}", rejected.body);
    assert!(
        rejected
            .message()
            .contains("found no matching overload for '_==_' applied to '(string, int)'"),
        "{}",
        rejected.message()
    );
    create(
        &server,
        POLICIES,
        policy("p", json!([{"expression": "object.data == 1"}])),
    )
    .await;
    let path = format!("{POLICIES}/p");
    let observed = |generation: i64| {
        move |_: u16, body: &Value| body["status"]["observedGeneration"] == json!(generation)
    };
    until(&server, &path, "checked", observed(1)).await;
    let policy = server.get(&path).await.body;
    assert_eq!(
        policy["status"],
        json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [{
            "fieldRef": "spec.validations[0].expression",
            "warning": "/v1, Kind=ConfigMap: ERROR: <input>:1:13: found no matching overload for '_==_' applied to \
                        '(map(string, string), int)'\n | object.data == 1\n | ............^\n"}]}})
    );
    let managers = policy["metadata"]["managedFields"].as_array().expect("managers");
    let own = managers
        .iter()
        .find(|entry| entry["manager"] == "validatingadmissionpolicy-status");
    let own = own.expect("a manager of the status");
    assert_eq!(
        (&own["operation"], &own["subresource"]),
        (&json!("Apply"), &json!("status"))
    );
    let correct = json!({"spec": {"validations": [{"expression": "object.data.a == 'b'"}]}});
    assert_eq!(server.merge(&path, &correct).await.code, 200);
    until(&server, &path, "checked again", observed(2)).await;
    let status = server.get(&path).await.body["status"].clone();
    assert_eq!(status, json!({"observedGeneration": 2, "typeChecking": {}}));
}
