use proptest::prelude::*;
use serde_json::json;

use super::*;
use rooflet_inference_api::openai::json::Json;

fn functions() -> Arc<[Function]> {
    let function = |name: &str, parameters: serde_json::Value| Function {
        strict: false,
        name: name.to_owned(),
        parameters: serde_json::from_value(parameters).unwrap(),
    };
    let weather = json!({"type": "object", "properties": {
        "town": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]},
        "at": {"type": ["string", "null"]}, "where": {"type": "object"}
    }});
    let edit = json!({"$defs": {"maybe": {"type": ["integer", "null"]}}, "properties": {
        "flag": {"type": "boolean"}, "count": {"$ref": "#/$defs/maybe"}, "text": {"type": "string"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "size": {"enum": [1, "auto", null]},
        "list": {"type": "array"}, "any": {}
    }});
    [
        function("weather", weather),
        function("edit", edit),
        function("now", json!(null)),
    ]
    .into()
}

fn scan<'a>(format: Format, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut scanner = ToolCallScanner::new(format, functions());
    let mut all: Vec<Piece> = pieces.into_iter().flat_map(|piece| scanner.push(piece)).collect();
    all.extend(scanner.finish());
    let mut whole: Vec<Piece> = Vec::new();
    for piece in all {
        match (whole.last_mut(), piece) {
            (Some(Piece::Text(text)), Piece::Text(more)) => text.push_str(&more),
            (Some(Piece::Call(CallPart::Arguments(json))), Piece::Call(CallPart::Arguments(more))) => {
                json.push_str(&more)
            }
            (_, piece) => whole.push(piece),
        }
    }
    whole
}

fn text(text: &str) -> Vec<Piece> {
    vec![Piece::Text(text.to_owned())]
}

fn call(name: &str, arguments: &str) -> Vec<Piece> {
    let name = name.to_owned();
    vec![
        Piece::Call(CallPart::Begin { name }),
        Piece::Call(CallPart::Arguments(arguments.to_owned())),
    ]
}

fn check(format: Format, output: &str, expected: &[Vec<Piece>]) {
    assert_eq!(scan(format, [output]), expected.concat(), "{output}");
}

#[test]
fn parses_tagged_json_calls() {
    let bern = r#"{"town": "Bern", "days":2}"#;
    let tagged = |output: &str, expected: &[Vec<Piece>]| check(Format::Tagged, output, expected);
    let one = format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {bern}}}\n</tool_call>");
    tagged(&one, &[call("weather", bern)]);
    tagged(
        &format!("I look.\n\n{one}\n{one}\n"),
        &[text("I look."), call("weather", bern), call("weather", bern)],
    );
    tagged(&format!("{one}\nDone."), &[call("weather", bern), text("Done.")]);
    // Without arguments; without the closing tag; with arguments as a string; with a tag inside.
    tagged(r#"<tool_call>{"name": "now"}"#, &[call("now", "{}")]);
    tagged(
        r#"<tool_call>{"name": "now", "arguments": "{\"a\":1}"}</tool_call>"#,
        &[call("now", r#"{"a":1}"#)],
    );
    tagged(
        r#"<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>"#,
        &[call("now", r#"{"a": "</tool_call>"}"#)],
    );
}

#[test]
fn malformed_calls_stay_text() {
    for output in [
        "text only\n",
        "<tool_call>",
        "a\n<tool_call>\nnot a call\n</tool_call> b",
        r#"<tool_call>{"name": 5}</tool_call>"#,
        r#"<tool_call>{"name": "now", "arguments": [1]}</tool_call>"#,
        r#"<tool_call>{"name": "now", "argum"#,
        "<tool_call><function=weather",
    ] {
        check(Format::Tagged, output, &[text(output)]);
    }
    for output in [
        r#"{"name": "Bob", "age": 3}"#,
        r#"{"name": "other", "parameters": {}}"#,
        "{",
        "[TOOL_CALLS]",
    ] {
        check(Format::Llama, output, &[text(output)]);
    }
    for output in [
        "[TOOL_CALLS][",
        "[TOOL_CALLS]now[ARGS]",
        "a [TOOL",
        "[TOOL_CALLS]{}",
    ] {
        check(Format::Mistral, output, &[text(output)]);
    }
}

/// With a complete name and the start of the arguments, a text is a call.
#[test]
fn parses_calls_that_were_cut_off() {
    check(
        Format::Tagged,
        r#"<tool_call>{"name": "now", "arguments": {"a": "b"#,
        &[call("now", r#"{"a": "b"#)],
    );
    check(
        Format::Tagged,
        "<tool_call><function=weather><parameter=town>Bern</parameter><parameter=days>",
        &[call("weather", r#"{"town":"Bern""#)],
    );
    check(
        Format::Tagged,
        "<tool_call><function=weather><parameter=town>Bern",
        &[call("weather", "{")],
    );
    // Not closed before the next call.
    check(
        Format::Tagged,
        r#"<tool_call>{"name": "now", "arguments": {"a": 1<tool_call>{"name": "now", "arguments": {}}"#,
        &[call("now", r#"{"a": 1"#), call("now", "{}")],
    );
    check(Format::Mistral, "[TOOL_CALLS]now[ARGS]{", &[call("now", "{")]);
    // Cut off in the closing marker.
    for cut in ["\n", "\n<", "</tool_cal", "</tool_call>\n<tool"] {
        let text = format!(r#"<tool_call>{{"name": "now", "arguments": {{}}}}{cut}"#);
        check(Format::Tagged, &text, &[call("now", "{}")]);
    }
}

#[test]
fn streams_arguments_of_a_call() {
    let mut scanner = ToolCallScanner::new(Format::Tagged, functions());
    let begin = Piece::Call(CallPart::Begin {
        name: "weather".to_owned(),
    });
    let arguments = |json: &str| Piece::Call(CallPart::Arguments(json.to_owned()));
    assert_eq!(scanner.push("<tool_call>\n{\"name\": \"weather\", \"argu"), []);
    assert_eq!(
        scanner.push("ments\": {\"town\": \"B"),
        [begin.clone(), arguments("{\"town\": \"B")]
    );
    assert_eq!(scanner.push("er"), [arguments("er")]);
    assert_eq!(scanner.push("n\"}"), [arguments("n\"}")]);
    assert_eq!(scanner.push("}\n</tool_"), []);
    assert_eq!(scanner.push("call>"), []);
    assert_eq!(scanner.push("<tool_call><function=weather>"), [begin]);
    assert_eq!(scanner.push("<parameter=town>Bern</parameter>\n<"), []);
    assert_eq!(scanner.push("parameter="), [arguments("{\"town\":\"Bern\"")]);
    assert_eq!(
        scanner.push("days>2</parameter></function>"),
        [arguments(",\"days\":2}")]
    );
}

/// The formats are those of the models' templates and documentation.
#[test]
fn parses_deepseek_and_kimi_calls() {
    let bern = || call("weather", r#"{"town": "Bern"}"#);
    let fenced = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"town\": \"Bern\"}\n```<｜tool▁call▁end｜>";
    let bare = "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"town\": \"Bern\"}<｜tool▁call▁end｜>";
    for one in [fenced, bare] {
        check(
            Format::DeepSeek,
            &format!("I look.\n<｜tool▁calls▁begin｜>{one}\n{one}<｜tool▁calls▁end｜>"),
            &[text("I look."), bern(), bern()],
        );
    }
    check(Format::DeepSeek, bare, &[bern()]);
    check(
        Format::DeepSeek,
        "<｜tool▁calls▁begin｜>nothing",
        &[text("<｜tool▁calls▁begin｜>nothing")],
    );
    let one = "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"town\": \"Bern\"}<|tool_call_end|>";
    check(
        Format::Kimi,
        &format!("<|tool_calls_section_begin|>{one}{one}<|tool_calls_section_end|>"),
        &[bern(), bern()],
    );
    check(
        Format::Kimi,
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>no",
        &[text(
            "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>no",
        )],
    );
}

#[test]
fn parses_glm_4_calls() {
    let bern = || call("weather", r#"{"town": "Bern"}"#);
    for output in [
        "weather\n{\"town\": \"Bern\"}",
        "weather \n{\"town\": \"Bern\"}\n",
    ] {
        check(Format::Glm, output, &[bern()]);
    }
    for output in [
        "\nweather\n{}",
        "weather",
        "weather\n",
        "weather {}",
        "weather\nis {}",
        "weathers\n{}",
        "unknown\n{}",
        "The weather\n{}",
    ] {
        check(Format::Glm, output, &[text(output)]);
    }
}

/// The schema determines the types of values. The formats are those of the models' templates.
#[test]
fn parses_tagged_xml_and_pairs() {
    let arguments = r#"{"town":"5","days":2,"units":"C","at":"12","where":{"x":[1]},"other":"7"}"#;
    let xml = "<tool_call>\n<function=weather>\n<parameter=town>\n5\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
               <parameter=units>\nC\n</parameter>\n<parameter=at>\n12\n</parameter>\n\
               <parameter=where>\n{\"x\": [1]}\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>";
    check(Format::Tagged, xml, &[call("weather", arguments)]);
    let pair = |key: &str, value: &str| format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n");
    let pairs = [
        ("town", "5"),
        ("days", "2"),
        ("units", "C"),
        ("at", "12"),
        ("where", "{\"x\": [1]}"),
        ("other", "7"),
    ];
    let pairs: String = pairs.iter().map(|(key, value)| pair(key, value)).collect();
    check(
        Format::Tagged,
        &format!("<tool_call>weather\n{pairs}</tool_call>"),
        &[call("weather", arguments)],
    );
    check(Format::Tagged, "<tool_call>now</tool_call>", &[call("now", "{}")]);
    check(
        Format::Tagged,
        "<tool_call><function=now><parameter=code>\n\na\n\n</parameter></function></tool_call>",
        &[call("now", r#"{"code":"\na\n"}"#)],
    );
}

#[test]
fn values_have_the_type_of_the_schema() {
    for (key, output, value) in [
        ("flag", "True", "true"),
        ("flag", "false", "false"),
        ("count", "None", "null"),
        ("count", "null", "null"),
        ("count", "7", "7"),
        ("count", "many", r#""many""#),
        ("note", "12345", r#""12345""#),
        ("note", "True", r#""True""#),
        ("note", "null", "null"),
        ("text", "null", r#""null""#),
        ("text", "['a']", r#""['a']""#),
        ("size", "1", "1"),
        ("size", "auto", r#""auto""#),
        ("size", "None", "null"),
        ("list", r#"["a", 1]"#, r#"["a",1]"#),
        (
            "list",
            r#"['it\'s', "é\n", -1.5, [], {'b': True, "c": {}},]"#,
            r#"["it's","é\n",-1.5,[],{"b":true,"c":{}}]"#,
        ),
        ("list", "['a'", r#""['a'""#),
        ("list", "['a'] b", r#""['a'] b""#),
        ("list", "[,]", r#""[,]""#),
        ("any", "5", "5"),
        ("unknown", "5", r#""5""#),
    ] {
        let arguments = format!("{{\"{key}\":{value}}}");
        let xml = format!(
            "<tool_call><function=edit>\n<parameter={key}>\n{output}\n</parameter>\n</function></tool_call>"
        );
        check(Format::Tagged, &xml, &[call("edit", &arguments)]);
        let pairs =
            format!("<tool_call>edit\n<arg_key>{key}</arg_key><arg_value>{output}</arg_value></tool_call>");
        check(Format::Tagged, &pairs, &[call("edit", &arguments)]);
    }
    let deep = "[".repeat(100_000);
    let xml = format!("<tool_call><function=edit><parameter=list>{deep}</parameter></function></tool_call>");
    check(
        Format::Tagged,
        &xml,
        &[call("edit", &format!("{{\"list\":\"{deep}\"}}"))],
    );
}

/// The number of paths grows exponentially, because each path refers back twice.
#[test]
fn limits_work_on_recursive_schemas() {
    let again = json!({"$ref": "#/$defs/again"});
    let schema = json!({
        "type": "object", "properties": {"x": again},
        "$defs": {"again": {"anyOf": [again, again, {"type": "integer"}]}}
    });
    let schema: Json = serde_json::from_str(&schema.to_string()).unwrap();
    let properties = schema
        .get("properties")
        .and_then(|properties| properties.get("x"));
    let output = value::value(&schema, properties.unwrap(), "5");
    assert_eq!(serde_json::to_string(&output).unwrap(), "5");
}

#[test]
fn values_may_contain_tags() {
    let edit =
        |parameters: &str| format!("<tool_call>\n<function=edit>\n{parameters}</function>\n</tool_call>");
    let file = "<a>\n</parameter>\n</a>\n<parameter=other>x\n</function>y\n</parameter>";
    let output = edit(&format!(
        "<parameter=text>\n{file}\n</parameter>\n<parameter=flag>\ntrue\n</parameter>\n"
    ));
    let text_json = serde_json::to_string(file).unwrap();
    let arguments = format!("{{\"text\":{text_json},\"flag\":true}}");
    check(Format::Tagged, &output, &[call("edit", &arguments)]);
    for size in 1..9 {
        let pieces = crate::markers::pieces(&output, &[size; 80]);
        assert_eq!(scan(Format::Tagged, pieces), call("edit", &arguments), "{size}");
    }
    // Unclosed tags.
    let both = call("edit", r#"{"text":"a","flag":true}"#);
    for output in [
        edit("<parameter=text>\na\n<parameter=flag>\ntrue\n"),
        edit("<parameter=text>\na\n<parameter=flag>\ntrue\n</parameter>\n"),
        "<tool_call><function=edit><parameter=text>a</parameter><parameter=flag>true</function>".to_owned(),
        "<tool_call><function=edit><parameter=text>a</parameter><parameter=flag>true</parameter>".to_owned(),
    ] {
        check(Format::Tagged, &output, std::slice::from_ref(&both));
    }
}

#[test]
fn parses_several_calls_in_one_tag() {
    let now = r#"{"name": "now", "arguments": {}}"#;
    let turned = r#"{"arguments": {"town": "Bern"}, "name": "weather"}"#;
    let weather = || call("weather", r#"{"town": "Bern"}"#);
    let tagged = |output: &str, expected: &[Vec<Piece>]| check(Format::Tagged, output, expected);
    tagged(
        &format!("<tool_call>\n{now}\n{turned}\n{now}\n</tool_call>\nDone."),
        &[call("now", "{}"), weather(), call("now", "{}"), text("Done.")],
    );
    tagged(
        &format!("<tool_call>{now}</tool_call>{now}"),
        &[call("now", "{}"), text(now)],
    );
}

#[test]
fn parses_llama_calls() {
    let weather = r#"{"name": "weather", "parameters": {"town": "Bern"}}"#;
    let bern = || call("weather", r#"{"town": "Bern"}"#);
    check(Format::Llama, weather, &[bern()]);
    check(
        Format::Llama,
        &format!("\n{weather}; {weather}"),
        &[bern(), bern()],
    );
    check(
        Format::Llama,
        &format!("Look:<|python_tag|>{weather}"),
        &[text("Look:"), bern()],
    );
    check(Format::Llama, "Hello {", &[text("Hello {")]);
}

#[test]
fn parses_mistral_calls() {
    let weather = || call("weather", r#"{"town": "Bern"}"#);
    check(
        Format::Mistral,
        r#"[TOOL_CALLS] [{"name": "weather", "arguments": {"town": "Bern"}}, {"name": "now", "arguments": {}}]"#,
        &[weather(), call("now", "{}")],
    );
    check(
        Format::Mistral,
        r#"a[TOOL_CALLS]weather[CALL_ID]x1[ARGS]{"town": "Bern"}[TOOL_CALLS]now[ARGS]{}"#,
        &[text("a"), weather(), call("now", "{}")],
    );
}

proptest! {
    #[test]
    fn result_does_not_depend_on_pieces(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just("a "), Just("é"), Just("<tool"), Just("[TOOL_CALLS]"),
                Just("[{\"name\":\"now\"}]"), Just("{\"name\":\"now\",\"arguments\":{}}"), Just("<function=now></function>"),
                Just("now"), Just("<|python_tag|>"), Just("{\"a\":"), Just("[ARGS]{}"), Just("}"), Just("{\"name\":\"now\",\"arguments\":{\"a\":\"<"),
                Just("<tool_call><function=weather>"), Just("<parameter=town>"), Just("</parameter>"), Just("</function>"),
                Just("<parameter=days>"), Just("<parameter=other>"),
                Just("<tool_call>weather\n"), Just("<arg_key>town</arg_key><arg_value>"), Just("</arg_value>"), Just(";"),
                Just(deepseek::SECTION), Just(deepseek::CALL), Just(deepseek::SEPARATOR), Just(kimi::ARGUMENTS), Just(kimi::CALL),
            ],
            0..9,
        ),
        format in prop_oneof![
            Just(Format::Tagged), Just(Format::Llama), Just(Format::Mistral), Just(Format::DeepSeek), Just(Format::Kimi),
            Just(Format::Glm)
        ],
        sizes in proptest::collection::vec(1_usize..7, 0..50),
    ) {
        let output = parts.concat();
        let pieces = crate::markers::pieces(&output, &sizes);
        prop_assert_eq!(scan(format, pieces), scan(format, [output.as_str()]));
    }
}
