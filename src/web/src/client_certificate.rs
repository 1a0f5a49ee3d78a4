//! Client certificates with which users sign in. A browser does not give a page the private key of a
//! certificate that it presents in TLS, but the server needs the key to send requests as the user. So the
//! user chooses the files of certificate and key.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::error::WebError;
use rooflet_client::UserCredential;

const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";
const ENCRYPTED_KEY: &str = "ENCRYPTED PRIVATE KEY";

/// Returns the credential in a text with certificate and private key in PEM, in any order. Errors contain
/// no part of the text.
pub(crate) fn parse(text: &str) -> Result<UserCredential, WebError> {
    let invalid = |what: &str| WebError::InvalidRequest(format!("certificate: {what}"));
    let (mut certificate, mut keys) = (String::new(), Vec::new());
    for (label, block) in blocks(text) {
        match label {
            CERTIFICATE => certificate = certificate + block + "\n",
            ENCRYPTED_KEY => {
                return Err(invalid(
                    "the private key has a passphrase: `openssl pkey -in FILE` prints it without one",
                ));
            }
            label if label.ends_with(KEY) => keys.push(format!("{block}\n")),
            _ => {}
        }
    }
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| invalid("a certificate is not valid PEM"))?;
    if chain.is_empty() {
        return Err(invalid(
            "the files contain no certificate in PEM (`-----BEGIN CERTIFICATE-----`)",
        ));
    }
    let key = match keys.as_slice() {
        [key] => key.clone(),
        [] => {
            return Err(invalid(
                "the files contain no private key in PEM: choose the file of the key, too",
            ));
        }
        [_, ..] => return Err(invalid("the files contain more than one private key")),
    };
    let parsed = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| invalid("the private key is not valid PEM"))?;
    CertifiedKey::from_der(chain, parsed, &rustls::crypto::ring::default_provider()).map_err(|_| {
        invalid("the private key is unsupported, or does not belong to the first certificate")
    })?;
    Ok(UserCredential::Certificate { certificate, key })
}

/// Returns labels and blocks of PEM.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let starts = text.match_indices("-----BEGIN ");
    starts.filter_map(|(at, begin)| {
        let label = text[at + begin.len()..].split_once("-----")?.0;
        let end = format!("-----END {label}-----");
        let length = text[at..].find(&end)? + end.len();
        Some((label, &text[at..at + length]))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Made with `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=alice`.
    pub(crate) const ALICE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBdjCCAR2gAwIBAgIUX65cliIWK5Eno9pcZ9cDiGMqRYowCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFYWxpY2UwIBcNMjYxMTI3MDc1OTAyWhgPMjEyNjExMDMwNzU5
MDJaMBAxDjAMBgNVBAMMBWFsaWNlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
YG1L1iB9FgeQ570meUdKJoqnPBtizACz1FU/TIt9FolJ6KJRj4u3oignumL5gjFU
lcYHKCSWOrdYq/ZHPszSpaNTMFEwHQYDVR0OBBYEFIOQ8BRpXEXmFNByauEyPGRH
FVfDMB8GA1UdIwQYMBaAFIOQ8BRpXEXmFNByauEyPGRHFVfDMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgQSPvjZkNsdazM9vMkgN4uRTD56UKXQM2
1BEwqB1mXdMCIEcNRUdeE1Nx/TGYBP9ZnxaohuZb6+Ne9ALTvlWctZ5S
-----END CERTIFICATE-----
";
    pub(crate) const ALICE_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgU68CjCx8PxWqPheK
5esqZDCCm642cUWIUQce52tpyuChRANCAARgbUvWIH0WB5DnvSZ5R0omiqc8G2LM
ALPUVT9Mi30WiUnoolGPi7eiKCe6YvmCMVSVxgcoJJY6t1ir9kc+zNKl
-----END PRIVATE KEY-----
";
    /// Another key.
    const OTHER_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgvoofMFa1AO8iWaWX
/XeJ5nYdj0A+KcgweTIqww54FdihRANCAASx2F8k/Itla3YorpEYBA4bdbDgfeJn
A7wdTfgQzYg7+IKmKAFi2JXpGQCRFnNgjAWg5R9SNZ8gXFXgs9ufDAGX
-----END PRIVATE KEY-----
";

    fn message(text: &str) -> String {
        match parse(text) {
            Err(err) => err.to_string(),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn certificate_and_key_are_found_in_any_order() {
        for text in [
            format!("{ALICE}{ALICE_KEY}"),
            format!(
                "Bag Attributes\n{ALICE_KEY}\n-----BEGIN EC PARAMETERS-----\nBggq\n-----END EC PARAMETERS-----\n{ALICE}"
            ),
            format!("{}{}", ALICE.trim_end(), ALICE_KEY.trim_end()).replace('\n', "\r\n"),
        ] {
            let Ok(UserCredential::Certificate { certificate, key }) = parse(&text) else {
                panic!("{}", message(&text));
            };
            let plain = |text: &str| text.replace('\r', "").trim().to_owned();
            assert_eq!(
                (plain(&certificate), plain(&key)),
                (plain(ALICE), plain(ALICE_KEY))
            );
        }
    }

    #[test]
    fn wrong_files_are_rejected_with_the_remedy_and_without_their_content() {
        let encrypted = ALICE_KEY.replace(KEY, ENCRYPTED_KEY);
        let damaged = ALICE.replace("MII", "M\u{fc}I");
        for (text, expect) in [
            (String::new(), "no certificate in PEM"),
            ("token".to_owned(), "no certificate in PEM"),
            (ALICE_KEY.to_owned(), "no certificate in PEM"),
            (ALICE.to_owned(), "choose the file of the key"),
            (
                format!("{ALICE}{ALICE_KEY}{OTHER_KEY}"),
                "more than one private key",
            ),
            (format!("{ALICE}{OTHER_KEY}"), "does not belong"),
            (format!("{ALICE}{encrypted}"), "openssl pkey"),
            (format!("{damaged}{ALICE_KEY}"), "not valid PEM"),
            (
                format!("{ALICE}-----BEGIN PRIVATE KEY-----"),
                "choose the file of the key",
            ),
        ] {
            let message = message(&text);
            assert!(
                message.starts_with("certificate: ") && message.contains(expect),
                "{message}"
            );
            for line in ALICE
                .lines()
                .chain(ALICE_KEY.lines())
                .filter(|line| !line.starts_with('-'))
            {
                assert!(!message.contains(line), "{message}");
            }
        }
    }
}
