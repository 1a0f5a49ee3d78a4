//! The schemas that clients' libraries make.

use super::*;

/// What pydantic 2.14 (`TypeAdapter.json_schema`) and zod 4.6 (`toJSONSchema`, also for draft 7,
/// which OpenAI's client takes) make of their field types, one a line: its name, whether it can be
/// held to, and the schema.
#[test]
fn schemas_of_clients_can_be_held_to() {
    let recorded = include_str!("../clients.txt");
    for line in recorded.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.splitn(3, ' ');
        let (name, held, text) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        let asked = serde_json::from_str(text).unwrap();
        let mut builder = Builder::new();
        let rule = schema_rule(&mut builder, &asked);
        match held {
            "yes" => assert!(
                builder
                    .finish(rule.unwrap_or_else(|err| panic!("{name}: {err}")))
                    .is_ok()
            ),
            "no" => assert!(rule.is_err_and(|err| err.is_unsupported()), "{name}"),
            _ => panic!("{line}"),
        }
    }
}
