//! Tables of `kubectl get`: column definitions, and the cells of an object.

mod param_ref;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::jsonpath::JsonPath;
use rooflet_schema::gotext;

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Source of a column's cells.
#[derive(Clone, Debug)]
enum Cell {
    Name,
    /// Printer column of a CRD. `None` if its path is invalid.
    Path(Option<JsonPath>),
    /// Time since `metadata.creationTimestamp`.
    Age,
    /// `metadata.creationTimestamp`.
    Created,
    /// Text at a dotted path.
    Text(&'static str),
    /// Number of entries of these fields.
    Entries(&'static [&'static str]),
    Event(EventCell),
    Csr(CsrCell),
    /// Number of items of a list in the specification of an admission policy.
    Items(&'static str),
    /// Kind of the parameters of an admission policy.
    ParamKind,
    /// Parameters of the binding of an admission policy.
    ParamRef,
    /// Kind and name of a binding's role.
    Role,
    /// Names of a binding's subjects of this kind.
    Subjects(&'static str),
}

/// Cells of a CertificateSigningRequest.
#[derive(Clone, Copy, Debug)]
enum CsrCell {
    Requestor,
    RequestedDuration,
    Condition,
}

#[derive(Clone, Copy, Debug)]
enum EventCell {
    LastSeen,
    Object,
    Source,
    Message,
    FirstSeen,
    Count,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    kind: String,
    format: String,
    description: String,
    priority: i64,
    cell: Cell,
}

impl Column {
    fn new(name: &str, kind: &str, description: &str, cell: Cell) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: String::new(),
            description: description.to_owned(),
            priority: 0,
            cell,
        }
    }

    fn name() -> Self {
        Self {
            format: "name".to_owned(),
            ..Self::new("Name", "string", NAME_DESCRIPTION, Cell::Name)
        }
    }

    /// Shows the column only with `-o wide`.
    fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

/// Columns of a kind.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
}

impl Table {
    /// Returns the table for a CRD version (an element of `spec.versions`).
    pub fn of_crd_version(version: &Value) -> Self {
        let mut columns = vec![Column::name()];
        let printed = version.get("additionalPrinterColumns").and_then(Value::as_array);
        match printed.filter(|printed| !printed.is_empty()) {
            None => {
                let path = JsonPath::parse(".metadata.creationTimestamp").ok();
                columns.push(Column::new("Age", "date", CREATED_DESCRIPTION, Cell::Path(path)));
            }
            Some(printed) => columns.extend(printed.iter().map(printer_column)),
        }
        Self { columns }
    }

    /// Returns the table of a built-in kind.
    pub fn of_kind(group: &str, kind: &str) -> Self {
        let age = || Column::new("Age", "string", CREATED_DESCRIPTION, Cell::Age);
        let columns = match (group, kind) {
            ("", "Namespace") => vec![
                Column::name(),
                Column::new(
                    "Status",
                    "string",
                    "The status of the namespace",
                    Cell::Text("status.phase"),
                ),
                age(),
            ],
            ("", "ConfigMap") => vec![
                Column::name(),
                Column::new(
                    "Data",
                    "string",
                    CONFIG_MAP_DATA_DESCRIPTION,
                    Cell::Entries(&["data", "binaryData"]),
                ),
                age(),
            ],
            ("", "Secret") => vec![
                Column::name(),
                Column::new("Type", "string", SECRET_TYPE_DESCRIPTION, Cell::Text("type")),
                Column::new(
                    "Data",
                    "string",
                    SECRET_DATA_DESCRIPTION,
                    Cell::Entries(&["data"]),
                ),
                age(),
            ],
            ("coordination.k8s.io", "Lease") => vec![
                Column::name(),
                Column::new(
                    "Holder",
                    "string",
                    LEASE_HOLDER_DESCRIPTION,
                    Cell::Text("spec.holderIdentity"),
                ),
                age(),
            ],
            ("certificates.k8s.io", "CertificateSigningRequest") => csr_columns(),
            ("", "ServiceAccount") => vec![Column::name(), age()],
            ("rbac.authorization.k8s.io", "RoleBinding") => {
                binding_columns(ROLE_OF_BINDING_DESCRIPTION, "roleBinding")
            }
            ("rbac.authorization.k8s.io", "ClusterRoleBinding") => {
                binding_columns(ROLE_OF_CLUSTER_BINDING_DESCRIPTION, "clusterRoleBinding")
            }
            ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => policy_columns(
                "Validations",
                "Validations indicates the number of validation rules defined in this configuration",
                "spec.validations",
            ),
            ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => policy_columns(
                "Mutations",
                "Mutation indicates the number of mutations rules defined in this configuration",
                "spec.mutations",
            ),
            (
                "admissionregistration.k8s.io",
                "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding",
            ) => vec![
                Column::name(),
                Column::new(
                    "PolicyName",
                    "string",
                    "PolicyName indicates the policy definition which the policy binding binded to",
                    Cell::Text("spec.policyName"),
                ),
                Column::new(
                    "ParamRef",
                    "string",
                    "ParamRef indicates the param resource which sets the configuration param",
                    Cell::ParamRef,
                ),
                age(),
            ],
            ("" | "events.k8s.io", "Event") => event_columns(),
            _ => vec![
                Column::name(),
                Column::new("Created At", "date", CREATED_DESCRIPTION, Cell::Created),
            ],
        };
        Self { columns }
    }

    /// Returns `columnDefinitions` of the table.
    pub fn definitions(&self) -> Value {
        let definition = |column: &Column| {
            json!({"name": column.name, "type": column.kind, "format": column.format,
                "description": column.description, "priority": column.priority})
        };
        self.columns.iter().map(definition).collect()
    }

    /// Returns `cells` of an object's row. Expects events in core/v1 form.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns
            .iter()
            .map(|column| column.cell(object, now))
            .collect()
    }
}

const CONFIG_MAP_DATA_DESCRIPTION: &str = "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the keys in the BinaryData field, this is enforced during validation process.";
const SECRET_TYPE_DESCRIPTION: &str = "Used to facilitate programmatic handling of secret data. More info: https://kubernetes.io/docs/concepts/configuration/secret/#secret-types";
const SECRET_DATA_DESCRIPTION: &str = "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or '.'. The serialized form of the secret data is a base64 encoded string, representing the arbitrary (possibly non-string) data value here. Described in https://tools.ietf.org/html/rfc4648#section-4";
const LEASE_HOLDER_DESCRIPTION: &str = "holderIdentity contains the identity of the holder of a current lease. If Coordinated Leader Election is used, the holder identity must be equal to the elected LeaseCandidate.metadata.name field.";

fn event_columns() -> Vec<Column> {
    let event = |name: &str, description: &str, cell: EventCell| {
        Column::new(name, "string", description, Cell::Event(cell))
    };
    let text = |name: &str, description: &str, path: &'static str| {
        Column::new(name, "string", description, Cell::Text(path))
    };
    vec![
        event("Last Seen", "The time at which the most recent occurrence of this event was recorded.", EventCell::LastSeen),
        text("Type", "Type of this event (Normal, Warning), new types could be added in the future", "type"),
        text("Reason", "This should be a short, machine understandable string that gives the reason for the transition into the object's current status.", "reason"),
        event("Object", "The object that this event is about.", EventCell::Object),
        text("Subobject", "If referring to a piece of an object instead of an entire object, this string should contain a valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, if the object reference is to a container within a pod, this would take on a value like: \"spec.containers{name}\" (where \"name\" refers to the name of the container that triggered the event) or if no container name is specified \"spec.containers[2]\" (container with index 2 in this pod). This syntax is chosen only to have some well-defined way of referencing a part of an object.", "involvedObject.fieldPath").wide(),
        event("Source", "The component reporting this event. Should be a short machine understandable string.", EventCell::Source).wide(),
        event("Message", "A human-readable description of the status of this operation.", EventCell::Message),
        event("First Seen", "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)", EventCell::FirstSeen).wide(),
        event("Count", "The number of times this event has occurred.", EventCell::Count).wide(),
        Column::name().wide(),
    ]
}

const CSR_SIGNER_DESCRIPTION: &str = "signerName indicates the requested signer, and is a qualified name.";
const CSR_REQUESTOR_DESCRIPTION: &str = "username contains the name of the user that created the CertificateSigningRequest. Populated by the API server on creation and immutable.";
const CSR_DURATION_DESCRIPTION: &str = "expirationSeconds is the requested duration of validity of the issued certificate. The certificate signer may issue a certificate with a different validity duration.";
const CSR_CONDITION_DESCRIPTION: &str =
    "conditions applied to the request. Known conditions are \"Approved\", \"Denied\", and \"Failed\".";

fn csr_columns() -> Vec<Column> {
    let text = |name: &str, description: &str, cell: Cell| Column::new(name, "string", description, cell);
    vec![
        Column::name(),
        text("Age", CREATED_DESCRIPTION, Cell::Age),
        text(
            "SignerName",
            CSR_SIGNER_DESCRIPTION,
            Cell::Text("spec.signerName"),
        ),
        text(
            "Requestor",
            CSR_REQUESTOR_DESCRIPTION,
            Cell::Csr(CsrCell::Requestor),
        ),
        text(
            "RequestedDuration",
            CSR_DURATION_DESCRIPTION,
            Cell::Csr(CsrCell::RequestedDuration),
        ),
        text(
            "Condition",
            CSR_CONDITION_DESCRIPTION,
            Cell::Csr(CsrCell::Condition),
        ),
    ]
}

const ROLE_OF_BINDING_DESCRIPTION: &str = "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";
const ROLE_OF_CLUSTER_BINDING_DESCRIPTION: &str = "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";

fn policy_columns(items: &str, description: &str, list: &'static str) -> Vec<Column> {
    vec![
        Column::name(),
        Column::new(items, "integer", description, Cell::Items(list)),
        Column::new(
            "ParamKind",
            "string",
            "ParamKind specifies the kind of resources used to parameterize this policy",
            Cell::ParamKind,
        ),
        Column::new("Age", "string", CREATED_DESCRIPTION, Cell::Age),
    ]
}

fn binding_columns(role: &str, kind: &str) -> Vec<Column> {
    let subjects = |name: &str, subject: &'static str| {
        let description = format!("{name} in the {kind}");
        Column::new(name, "string", &description, Cell::Subjects(subject)).wide()
    };
    vec![
        Column::name(),
        Column::new("Role", "string", role, Cell::Role),
        Column::new("Age", "string", CREATED_DESCRIPTION, Cell::Age),
        subjects("Users", "User"),
        subjects("Groups", "Group"),
        subjects("ServiceAccounts", "ServiceAccount"),
    ]
}

/// Returns the names of a binding's subjects of one kind, separated by commas.
fn subject_names(binding: &Value, kind: &str) -> String {
    let subjects = at(binding, "subjects").and_then(Value::as_array);
    let named = subjects
        .into_iter()
        .flatten()
        .filter(|subject| subject["kind"] == kind);
    let names: Vec<String> = named
        .map(|subject| match (kind, text_at(subject, "namespace")) {
            ("ServiceAccount", namespace) => format!("{namespace}/{}", text_at(subject, "name")),
            _ => text_at(subject, "name").to_owned(),
        })
        .collect();
    names.join(", ")
}

fn csr_cell(cell: CsrCell, csr: &Value) -> Value {
    let has = |kind: &str| {
        let conditions = at(csr, "status.conditions").and_then(Value::as_array);
        conditions.is_some_and(|conditions| conditions.iter().any(|condition| condition["type"] == kind))
    };
    Value::from(match cell {
        CsrCell::Requestor => text_at(csr, "spec.username").to_owned(),
        CsrCell::RequestedDuration => at(csr, "spec.expirationSeconds")
            .and_then(Value::as_i64)
            .map_or_else(|| "<none>".to_owned(), human_duration),
        CsrCell::Condition => {
            let decision = match (has("Denied"), has("Approved")) {
                (true, _) => "Denied",
                (false, true) => "Approved",
                (false, false) => "Pending",
            };
            let failed = if has("Failed") { ",Failed" } else { "" };
            let issued = match text_at(csr, "status.certificate") {
                "" => "",
                _ => ",Issued",
            };
            format!("{decision}{failed}{issued}")
        }
    })
}

fn printer_column(column: &Value) -> Column {
    let text = |key: &str| column.get(key).and_then(Value::as_str).unwrap_or_default();
    let path = text("jsonPath");
    let description = match text("description") {
        "" => format!("Custom resource definition column (in JSONPath format): {path}"),
        description => description.to_owned(),
    };
    Column {
        format: text("format").to_owned(),
        priority: column.get("priority").and_then(Value::as_i64).unwrap_or_default(),
        ..Column::new(
            text("name"),
            text("type"),
            &description,
            Cell::Path(JsonPath::parse(path).ok()),
        )
    }
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |value, name| value.get(name))
}

fn text_at<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Name => Value::from(text_at(object, "metadata.name")),
            Cell::Age => Value::from(since(text_at(object, "metadata.creationTimestamp"), now)),
            Cell::Created => at(object, "metadata.creationTimestamp")
                .cloned()
                .unwrap_or_default(),
            Cell::Text(path) => Value::from(text_at(object, path)),
            Cell::Entries(fields) => {
                let entries =
                    |field: &&str| object.get(*field).and_then(Value::as_object).map_or(0, Map::len);
                Value::from(fields.iter().map(entries).sum::<usize>())
            }
            Cell::Event(cell) => event_cell(*cell, object, now),
            Cell::Csr(cell) => csr_cell(*cell, object),
            Cell::Items(path) => {
                let list = at(object, path).and_then(Value::as_array);
                Value::from(list.map_or(0, Vec::len))
            }
            Cell::ParamKind => Value::from(match at(object, "spec.paramKind") {
                Some(kind) => format!("{}/{}", text_at(kind, "apiVersion"), text_at(kind, "kind")),
                None => "<unset>".to_owned(),
            }),
            Cell::ParamRef => Value::from(match at(object, "spec.paramRef") {
                Some(reference) => param_ref::shown(reference),
                None => "<unset>".to_owned(),
            }),
            Cell::Role => Value::from(format!(
                "{}/{}",
                text_at(object, "roleRef.kind"),
                text_at(object, "roleRef.name")
            )),
            Cell::Subjects(kind) => Value::from(subject_names(object, kind)),
            Cell::Path(path) => match path.as_ref().and_then(|path| path.first(object)) {
                None | Some(Value::Null) => Value::Null,
                Some(value) => typed_cell(&self.kind, value, now),
            },
        }
    }
}

/// Converts a value to the column's type. Returns null if the types differ.
fn typed_cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::String(_)) => value.clone(),
        ("string", other) => Value::from(gotext::bad_value(other)),
        ("integer", Value::Number(number)) => number
            .as_i64()
            .or_else(|| number.as_f64().map(|float| float as i64))
            .map_or(Value::Null, Value::from),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => Value::from(since(text, now)),
        _ => Value::Null,
    }
}

/// Formats the age of a timestamp like kubectl.
fn since(timestamp: &str, now: Timestamp) -> String {
    if timestamp.is_empty() {
        return "<unknown>".to_owned();
    }
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats a duration with two or three significant figures: `5s`, `3m20s`, `5h`, `3d4h`, `2y`.
pub(crate) fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |major: i64, major_unit: &str, minor: i64, minor_unit: &str| match minor {
        0 => format!("{major}{major_unit}"),
        minor => format!("{major}{major_unit}{minor}{minor_unit}"),
    };
    match seconds {
        // Clocks of different machines may differ by a second.
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(seconds / HOUR, "h", seconds / MINUTE % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => pair(seconds / DAY, "d", seconds / HOUR % 24, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => pair(seconds / YEAR, "y", seconds / DAY % 365, "d"),
        252_288_000.. => format!("{}y", seconds / YEAR),
    }
}

fn event_cell(cell: EventCell, event: &Value, now: Timestamp) -> Value {
    let first_of = |paths: &[&str]| -> String {
        let found = paths
            .iter()
            .map(|path| text_at(event, path))
            .find(|text| !text.is_empty());
        found.unwrap_or_default().to_owned()
    };
    let series = event.get("series").filter(|series| series.is_object());
    let text = match cell {
        EventCell::FirstSeen => since(&first_of(&["firstTimestamp", "eventTime"]), now),
        EventCell::LastSeen => {
            let last = match series {
                Some(_) => first_of(&["series.lastObservedTime"]),
                None => first_of(&["lastTimestamp", "firstTimestamp", "eventTime"]),
            };
            since(&last, now)
        }
        EventCell::Object => {
            let kind = text_at(event, "involvedObject.kind").to_lowercase();
            match text_at(event, "involvedObject.name") {
                "" => kind,
                name => format!("{kind}/{name}"),
            }
        }
        EventCell::Source => {
            let component = first_of(&["source.component", "reportingComponent"]);
            let instance = first_of(&["source.host", "reportingInstance"]);
            if instance.is_empty() {
                component
            } else {
                format!("{component}, {instance}")
            }
        }
        EventCell::Message => text_at(event, "message").trim().to_owned(),
        EventCell::Count => {
            let count = match series {
                Some(series) => series.get("count").and_then(Value::as_i64).unwrap_or_default(),
                None => event
                    .get("count")
                    .and_then(Value::as_i64)
                    .filter(|count| *count != 0)
                    .unwrap_or(1),
            };
            return Value::from(count);
        }
    };
    Value::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-10T00:00:00Z";

    fn cells(table: &Table, object: Value) -> Value {
        Value::from(table.cells(&object, NOW.parse().unwrap()))
    }

    #[test]
    fn durations_have_two_or_three_significant_figures() {
        let check = |seconds: i64, expect: &str| assert_eq!(human_duration(seconds), expect, "{seconds}");
        check(-5, "<invalid>");
        check(-1, "0s");
        check(5, "5s");
        check(119, "119s");
        check(120, "2m");
        check(200, "3m20s");
        check(600, "10m");
        check(10_799, "179m");
        check(10_800, "3h");
        check(3 * 3600 + 90, "3h1m");
        check(8 * 3600, "8h");
        check(47 * 3600, "47h");
        check(48 * 3600, "2d");
        check(3 * 86_400 + 4 * 3600, "3d4h");
        check(8 * 86_400, "8d");
        check(729 * 86_400, "729d");
        check(730 * 86_400, "2y");
        check(735 * 86_400, "2y5d");
        check(3000 * 86_400, "8y");
    }

    #[test]
    fn crd_columns_convert_values_to_their_type() {
        let table = Table::of_crd_version(&json!({"additionalPrinterColumns": [
            {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "priority": 1},
            {"name": "Seen", "type": "date", "jsonPath": ".status.seen", "description": "When."},
            {"name": "Spec", "type": "string", "jsonPath": ".spec"}]}));
        assert_eq!(
            cells(
                &table,
                json!({"metadata": {"name": "a"}, "spec": {"replicas": 3},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "seen": "2026-01-09T23:59:50Z"}})
            ),
            json!(["a", 3, "True", "10s", "{\"replicas\":3}"])
        );
        assert_eq!(
            cells(
                &table,
                json!({"metadata": {"name": "a"}, "spec": {"replicas": "x"}, "status": {"seen": "noon"}})
            ),
            json!(["a", null, null, "<invalid>", "{\"replicas\":\"x\"}"])
        );
        let definitions = table.definitions();
        assert_eq!(definitions[0]["format"], json!("name"));
        assert_eq!(
            definitions[1]["description"],
            json!("Custom resource definition column (in JSONPath format): .spec.replicas")
        );
        assert_eq!(
            (&definitions[2]["priority"], &definitions[3]["description"]),
            (&json!(1), &json!("When."))
        );
    }

    #[test]
    fn crd_without_columns_shows_age() {
        let table = Table::of_crd_version(&json!({}));
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-06T20:00:00Z"}});
        assert_eq!(cells(&table, object), json!(["a", "3d4h"]));
    }

    #[test]
    fn built_in_kinds_have_their_own_columns() {
        let check = |group: &str, kind: &str, object: Value, names: &[&str], expect: Value| {
            let table = Table::of_kind(group, kind);
            let found: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
            assert_eq!(found, names, "{kind}");
            assert_eq!(cells(&table, object), expect, "{kind}");
        };
        let meta = json!({"name": "x", "creationTimestamp": "2026-01-09T23:00:00Z"});
        check(
            "",
            "Namespace",
            json!({"metadata": meta, "status": {"phase": "Active"}}),
            &["Name", "Status", "Age"],
            json!(["x", "Active", "60m"]),
        );
        check(
            "",
            "ConfigMap",
            json!({"metadata": meta, "data": {"a": "1"}, "binaryData": {"b": ""}}),
            &["Name", "Data", "Age"],
            json!(["x", 2, "60m"]),
        );
        check(
            "",
            "Secret",
            json!({"metadata": meta, "type": "Opaque"}),
            &["Name", "Type", "Data", "Age"],
            json!(["x", "Opaque", 0, "60m"]),
        );
        check(
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"metadata": meta, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [
                {"kind": "User", "name": "a"}, {"kind": "User", "name": "b"},
                {"kind": "ServiceAccount", "namespace": "n", "name": "robot"}]}),
            &["Name", "Role", "Age", "Users", "Groups", "ServiceAccounts"],
            json!(["x", "Role/r", "60m", "a, b", "", "n/robot"]),
        );
        check(
            "coordination.k8s.io",
            "Lease",
            json!({"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}}),
            &["Name", "Holder", "Age"],
            json!(["x", "me", "<unknown>"]),
        );
        check(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            json!({"metadata": meta}),
            &["Name", "Created At"],
            json!(["x", "2026-01-09T23:00:00Z"]),
        );
        check(
            "",
            "Event",
            json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Started", "message": " hi ",
                "involvedObject": {"kind": "Gizmo", "name": "a", "fieldPath": "spec.x"},
                "eventTime": "2026-01-09T23:59:00.000000Z", "reportingComponent": "c", "reportingInstance": "i"}),
            &[
                "Last Seen",
                "Type",
                "Reason",
                "Object",
                "Subobject",
                "Source",
                "Message",
                "First Seen",
                "Count",
                "Name",
            ],
            json!([
                "60s", "Normal", "Started", "gizmo/a", "spec.x", "c, i", "hi", "60s", 1, "e"
            ]),
        );
    }
}
