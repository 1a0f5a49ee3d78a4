//! Impersonation headers.

use http::Method;

use super::{GIZMOS, TestServer};

#[tokio::test]
async fn administrator_acts_with_the_permissions_of_the_impersonated_user() {
    let server = TestServer::start().await;
    let get = async |path: &str, headers: &[(&str, &str)]| {
        server.send(Method::GET, path, headers, Vec::new()).await
    };
    let as_alice = get(GIZMOS, &[("Impersonate-User", "alice")]).await;
    assert_eq!(as_alice.code, 403, "{}", as_alice.body);
    assert_eq!(
        as_alice.message(),
        "gizmos.example.com is forbidden: User \"alice\" cannot list resource \"gizmos\" in API group \"example.com\" \
         in the namespace \"default\""
    );
    let discovery = get("/apis", &[("Impersonate-User", "alice")]).await;
    assert_eq!(discovery.code, 200, "alice is authenticated");
    let anonymous = get("/apis", &[("Impersonate-User", "system:anonymous")]).await;
    assert_eq!(anonymous.code, 403);
    let in_masters = [
        ("Impersonate-User", "alice"),
        ("Impersonate-Group", "system:masters"),
    ];
    assert_eq!(get(GIZMOS, &in_masters).await.code, 200);
    let without_user = get(GIZMOS, &[("Impersonate-Group", "system:masters")]).await;
    assert!((400..=500).contains(&without_user.code), "{}", without_user.body);
}

#[tokio::test]
async fn user_without_permission_must_not_impersonate() {
    let server = TestServer::start().await;
    let mut nobody = server;
    nobody.api.token = String::new();
    for (headers, expect) in [
        (
            &[("Impersonate-User", "alice")][..],
            "forbidden: User \"system:anonymous\" cannot impersonate-on:user-info:get path \"/version\"",
        ),
        (
            &[("Impersonate-User", "system:serviceaccount:team:robot")],
            "forbidden: User \"system:anonymous\" cannot impersonate-on:serviceaccount:get path \"/version\"",
        ),
    ] {
        // Everybody may read the version, but not as another user.
        let refused = nobody.send(Method::GET, "/version", headers, Vec::new()).await;
        assert_eq!((refused.code, refused.message()), (403, expect));
    }
}
