//! OpenAPI v3 documents of the paths above the resources: `/api`, `/apis`, `/apis/GROUP` and `/version`.

use serde_json::{Map, Value, json};

use super::operations::{BUILT_IN_TYPES, capitalised, content, group_tag};
use super::{META, add_definition, add_referenced, security_schemes};

const VERSION: &str = "io.k8s.apimachinery.pkg.version.Info";

/// Path above the resources.
#[derive(Clone, Copy, Debug)]
pub enum Root<'a> {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP` of a built-in group.
    Group(&'a str),
    /// `/version`
    Version,
}

/// Returns the document of a path above the resources.
pub fn root_document(root: Root<'_>) -> Value {
    let meta = |kind: &str| format!("{META}.{kind}");
    let versions = "get available API versions";
    match root {
        Root::CoreVersions => {
            let operation = get("core", versions, "getCoreAPIVersions", &meta("APIVersions"));
            of_path("/api/", operation, &meta("APIVersions"))
        }
        Root::Groups => {
            let operation = get("apis", versions, "getAPIVersions", &meta("APIGroupList"));
            of_path("/apis/", operation, &meta("APIGroupList"))
        }
        Root::Group(group) => {
            let tag = group_tag(group);
            let id = format!("get{}APIGroup", capitalised(&tag));
            let operation = get(&tag, "get information of a group", &id, &meta("APIGroup"));
            of_path(&format!("/apis/{group}/"), operation, &meta("APIGroup"))
        }
        Root::Version => {
            let description = "get the version information for this server";
            let types = ["application/json"];
            let operation = get_in("version", description, "getCodeVersion", VERSION, &types);
            of_path("/version/", operation, VERSION)
        }
    }
}

/// Adds the path of a built-in group version, which lists its resources.
pub(super) fn add_resource_list(paths: &mut Map<String, Value>, group: &str, version: &str) {
    let root = match group {
        "" => format!("/api/{version}/"),
        _ => format!("/apis/{group}/{version}/"),
    };
    let tag = group_tag(group);
    let id = format!("get{}{}APIResources", capitalised(&tag), capitalised(version));
    let operation = get(
        &format!("{tag}_{version}"),
        "get available resources",
        &id,
        &format!("{META}.APIResourceList"),
    );
    paths.insert(root, json!({"get": operation}));
}

fn get(tag: &str, description: &str, id: &str, schema: &str) -> Value {
    get_in(tag, description, id, schema, &BUILT_IN_TYPES)
}

fn get_in(tag: &str, description: &str, id: &str, schema: &str, types: &[&str]) -> Value {
    json!({
        "tags": [tag],
        "description": description,
        "operationId": id,
        "responses": {
            "200": {"description": "OK", "content": content(schema, types)},
            "401": {"description": "Unauthorized"},
        },
    })
}

fn of_path(path: &str, operation: Value, schema: &str) -> Value {
    let mut schemas = Map::new();
    add_definition(&mut schemas, schema);
    add_referenced(&mut schemas);
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": env!("CARGO_PKG_VERSION")},
        "paths": {path: {"get": operation}},
        "components": {"schemas": schemas, "securitySchemes": security_schemes()},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations in `api/openapi-spec/v3` of Kubernetes 1.36.2.
    #[test]
    fn operations_equal_those_of_kubernetes() {
        let check = |root: Root<'_>, path: &str, id: &str, tag: &str, schemas: &[&str]| {
            let document = root_document(root);
            let operation = &document["paths"][path]["get"];
            assert_eq!(operation["operationId"], id);
            assert_eq!(operation["tags"], json!([tag]));
            let found = document["components"]["schemas"].as_object().expect("schemas");
            let names = found
                .keys()
                .map(|name| name.rsplit('.').next().unwrap_or_default());
            assert_eq!(names.collect::<Vec<_>>(), schemas, "{path}");
        };
        let address = "ServerAddressByClientCIDR";
        check(
            Root::CoreVersions,
            "/api/",
            "getCoreAPIVersions",
            "core",
            &["APIVersions", address],
        );
        let group = ["APIGroup", "GroupVersionForDiscovery", address];
        let groups = [group[0], "APIGroupList", group[1], group[2]];
        check(Root::Groups, "/apis/", "getAPIVersions", "apis", &groups);
        check(
            Root::Group("rbac.authorization.k8s.io"),
            "/apis/rbac.authorization.k8s.io/",
            "getRbacAuthorizationAPIGroup",
            "rbacAuthorization",
            &group,
        );
        check(Root::Version, "/version/", "getCodeVersion", "version", &["Info"]);
    }
}
