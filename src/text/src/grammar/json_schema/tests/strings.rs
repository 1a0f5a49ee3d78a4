//! Formats of strings, and combinations with patterns and lengths.

use super::*;

#[test]
fn strings_match_their_format() {
    let format = |name: &str| json!({"type": "string", "format": name});
    check(
        format("date"),
        &[
            r#""2026-02-28""#,
            r#""2026-12-31""#,
            r#""2028-02-29""#,
            r#""2000-02-29""#,
        ],
        &[
            r#""2026-02-29""#,
            r#""1900-02-29""#,
            r#""2026-02-30""#,
            r#""2026-04-31""#,
            r#""26-01-01""#,
        ],
    );
    check(
        format("date-time"),
        &[r#""2026-11-21T09:05:00Z""#, r#""2026-11-21T23:59:59.5+01:00""#],
        &[r#""2026-11-21""#, r#""2026-11-21T24:00:00Z""#],
    );
    check(
        format("uuid"),
        &[r#""123e4567-e89b-12d3-a456-426614174000""#],
        &[r#""123e4567""#],
    );
    check(
        format("ipv4"),
        &[r#""255.0.10.1""#],
        &[r#""256.0.0.1""#, r#""1.2.3""#],
    );
    check(
        format("email"),
        &[r#""a.b+c@example.org""#],
        &[r#""a@b""#, r#""@b.org""#],
    );
    check(
        format("duration"),
        &[r#""P1Y2M3DT4H5M6S""#, r#""PT36H""#, r#""P2W""#, r#""P1DT5M""#],
        &[
            r#""P""#,
            r#""PT""#,
            r#""P1D2W""#,
            r#""P1Y2D""#,
            r#""1D""#,
            r#""P1DT""#,
        ],
    );
    check(
        format("hostname"),
        &[r#""localhost""#, r#""a-1.example.org""#],
        &[r#""""#, r#""-a""#, r#""a-.b""#, r#""a..b""#, r#""a_b""#],
    );
    check(
        format("ipv6"),
        &[
            r#""::""#,
            r#""::1""#,
            r#""1::""#,
            r#""2001:db8::8a2e:370:7334""#,
            r#""1:2:3:4:5:6:7:8""#,
            r#""1:2:3:4:5:6:7::""#,
            r#""1::8""#,
        ],
        &[
            r#"":""#,
            r#""1:2:3:4:5:6:7""#,
            r#""1::2::3""#,
            r#""1:2:3:4:5:6:7::8""#,
            r#""12345::""#,
        ],
    );
    check(
        format("uri"),
        &[
            r#""https://example.org""#,
            r#""http://a.b:80/x/y%20z?q=1&r#s""#,
            r#""mailto:a@b.org""#,
            r#""urn:isbn:1""#,
        ],
        &[
            r#""example.org""#,
            r#""https://""#,
            r#""a:b c""#,
            r#""a:%2""#,
            r#""1a:b""#,
        ],
    );
    check(
        format("base64"),
        &[r#""""#, r#""YQ==""#, r#""YWI=""#, r#""YWJj""#],
        &[r#""YQ""#, r#""YQ=""#, r#""Y_==""#],
    );
    check(
        format("uuid4"),
        &[r#""123e4567-e89b-42d3-a456-426614174000""#],
        &[r#""123e4567-e89b-12d3-a456-426614174000""#],
    );
    check(
        format("jwt"),
        &[
            // RFC 7515, A.1 and A.5.
            r#""eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk""#,
            r#""eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.""#,
            r#""eyJhbGciOiJIUzI1NiJ9.e30.dBjf""#,
        ],
        &[
            r#""""#,
            r#""abc.def.ghi""#,
            r#""eyJhbGciOiJub25lIn0.e30""#,
            r#""eyJhbGciOiJub25lIn0.e30.dBjft""#,
            r#""eyJhbGciOiJub25lIn0=.e30.""#,
            r#""eyJhbGciOiJub25lI.e30.dBjf""#,
        ],
    );
    check(format("password"), &[r#""any \"text\"""#], &["1"]);
}

#[test]
fn strings_satisfy_all_constraints() {
    check(
        json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}),
        &[r#""ab""#, r#""abc""#],
        &[r#""a""#, r#""abcd""#, r#""aB""#],
    );
    check(
        json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2}),
        &[r#""ab""#, r#""abcdefgh""#],
        &[r#""a""#, r#""aB""#],
    );
    check(
        json!({"type": "string", "format": "ends_with", "allOf": [{"pattern": "^é.*"}, {"pattern": ".*\"$"}]}),
        &[r#""é\"""#, r#""é…\"""#],
        &[r#""é""#, r#""\"""#, r#""e\"""#],
    );
    check(
        json!({"type": "string", "format": "date", "pattern": "^2028-02"}),
        &[r#""2028-02-29""#],
        &[r#""2028-03-01""#, r#""2028-02-30""#, r#""2028-02""#],
    );
    // Zod's expression.
    let labels = "^(?=.{1,253}\\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\\.?$";
    check(
        json!({"type": "string", "format": "hostname", "pattern": labels}),
        &[r#""localhost""#, r#""a-1.example.org""#],
        &[r#""""#, r#""-a""#, r#""a-.b""#, r#""a..b""#, r#""a b""#],
    );
    // The expression defines a format that is unknown.
    check(
        json!({"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"}),
        &[r#""V1StGXR8_Z5jdHi6B-myT""#],
        &[r#""V1StGXR8""#],
    );
    check(
        json!({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}),
        &[r#""https://example.org/""#],
        &[r#""""#],
    );
    for most in [60, 500, 501, 2048, 1_000_000] {
        let long = format!("\"https://example.org/{}\"", "x".repeat(most - 19));
        check(
            json!({"type": "string", "format": "uri", "maxLength": most}),
            &[r#""https://example.org/a?b=c#d""#],
            &[&long],
        );
    }
    check(
        json!({"type": "string", "format": "uri", "maxLength": 12}),
        &[r#""http://a.org""#],
        &[r#""https://a.org""#],
    );
    check(
        json!({"type": "string", "pattern": "^(?=.{2,3}$)(?!.*ab)[a-c]*$"}),
        &[r#""aa""#, r#""bca""#],
        &[r#""a""#, r#""aab""#, r#""aaaa""#],
    );
    check(
        json!({"type": "string", "pattern": "(?!a)"}),
        &[r#""""#, r#""ba""#, r#""aba""#],
        &[],
    );
    check(
        json!({"type": "string", "pattern": "^(?!a)"}),
        &[r#""""#, r#""ba""#],
        &[r#""a""#, r#""\u0061""#, r#""abc""#],
    );
    check(
        json!({"type": "string", "pattern": "^$|^a+$|^b"}),
        &[r#""""#, r#""aa""#, r#""bc""#],
        &[r#""ac""#, r#""cb""#],
    );
    check(
        json!({"type": "string", "pattern": "^[(?=]+$"}),
        &[r#""(=?""#],
        &[r#""a""#],
    );
}

/// Every prefix can be completed, also with several constraints.
#[test]
fn every_text_can_be_completed() {
    let constraints = [
        json!({"pattern": "^[ab]*c[0-9]{3}$", "maxLength": 6}),
        json!({"format": "email", "maxLength": 12}),
        json!({"pattern": "^a?(?=[bc]{2,3}$)(?!bb)[a-z]*$"}),
    ];
    for constraint in constraints {
        let input = schema(&constraint);
        let grammar = grammar(|builder| schema_rule(builder, &input).unwrap());
        for seed in 0..40 {
            // `walk` panics if nothing can follow.
            let text = walk(&grammar, seed);
            assert!(text.chars().count() <= 14, "{text}");
        }
    }
}
