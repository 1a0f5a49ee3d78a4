//! Formats of JSON Schema whose texts can be told by a regular expression: RFC 3339, 4122, 4291, 4648, 2673 and,
//! simplified, 1123, 3986 and 5321.

/// A day of the Gregorian calendar.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))\
    |([0-9]{2}([2468][048]|[13579][26]|0[48])|([02468][048]|[13579][26])00)-02-29)";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// Never longer than the 253 characters that a name may have.
const HOSTNAME: &str =
    r"[A-Za-z0-9]([A-Za-z0-9-]{0,28}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,28}[A-Za-z0-9])?){0,7}";

/// `None` for a format that is not known.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => duration(),
        "uuid" => uuid("[0-9a-fA-F]", "[0-9a-fA-F]"),
        // As pydantic calls those of one version.
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => uuid(&format[4..], "[89abAB]"),
        "ipv4" => {
            let number = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
            format!(r"({number}\.){{3}}{number}")
        }
        "ipv6" => ipv6(),
        "hostname" => HOSTNAME.to_owned(),
        "email" => {
            let word = "[A-Za-z0-9_+-]+";
            let label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
            format!(r"{word}(\.{word})*@({label}\.)+[A-Za-z]{{2,63}}")
        }
        "uri" => uri(),
        "byte" | "base64" => base64("[A-Za-z0-9+/]"),
        "base64url" => base64("[A-Za-z0-9_-]"),
        _ => return None,
    };
    Some(format!("^({pattern})$"))
}

/// Formats that tell how a text is used, and not what it is.
pub(super) fn is_any_text(format: &str) -> bool {
    ["binary", "password", "path"].contains(&format)
}

fn uuid(version: &str, variant: &str) -> String {
    let some = "[0-9a-fA-F]";
    format!("{some}{{8}}-{some}{{4}}-{version}{some}{{3}}-{variant}{some}{{3}}-{some}{{12}}")
}

fn duration() -> String {
    let count = |unit: &str, smaller: &str| match smaller {
        "" => format!("[0-9]{{1,6}}{unit}"),
        _ => format!("[0-9]{{1,6}}{unit}({smaller})?"),
    };
    let (second, day, week) = (count("S", ""), count("D", ""), count("W", ""));
    let minute = count("M", &second);
    let hour = count("H", &minute);
    let month = count("M", &day);
    let year = count("Y", &month);
    let time = format!("T({hour}|{minute}|{second})");
    format!("P(({day}|{month}|{year})({time})?|{time}|{week})")
}

/// Without an IPv4 address at the end.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut ways = vec![
        format!("({group}:){{7}}{group}"),
        format!("({group}:){{1,7}}:"),
        format!(":(:{group}){{1,7}}"),
        "::".to_owned(),
    ];
    // As many groups before the gap, and at most so many behind it.
    ways.extend((1..7).map(|before| format!("({group}:){{{before}}}(:{group}){{1,{}}}", 7 - before)));
    ways.join("|")
}

/// Without a user's name. Never longer than the 2083 characters that browsers and pydantic take.
fn uri() -> String {
    let plain = "-A-Za-z0-9._~!$&'()*+,;=:@";
    let coded = "%[0-9A-Fa-f]{2}";
    let path = format!("([{plain}/]|{coded}){{0,200}}");
    let more = |most: u32| format!("([{plain}/?]|{coded}){{0,{most}}}");
    let (query, fragment) = (more(300), more(90));
    format!(
        r"[A-Za-z][A-Za-z0-9+.-]{{0,30}}:(//{HOSTNAME}(:[0-9]{{1,4}})?(/{path})?|[{plain}]{path})(\?{query})?(#{fragment})?"
    )
}

fn base64(digit: &str) -> String {
    format!("({digit}{{4}})*({digit}{{2}}==|{digit}{{3}}=)?")
}
