use super::*;

/// Returns a self-signed certificate for `name` and its key, in PEM.
fn pair(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn changed_files_are_loaded_and_unusable_files_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let manual = ManualClock::new(rooflet_base::clock::at(0));
    let (first, first_key) = pair("first");
    fs::write(&certificate, &first).unwrap();
    fs::write(&key, first_key).unwrap();
    let files = CertificateFiles::open(&certificate, &key, Clock::Manual(manual.clone())).unwrap();
    let config = files.server_config().unwrap();
    handshake(&first, &config, "first", &[]).unwrap();

    let (second, second_key) = pair("second.example");
    fs::write(&certificate, &second).unwrap();
    manual.advance(Duration::from_secs(5));
    handshake(&first, &config, "first", &[]).expect("a certificate without its key is ignored");
    fs::write(&key, format!("{second_key}\n")).unwrap();
    manual.advance(Duration::from_secs(5));
    handshake(&second, &config, "second.example", &[]).unwrap();
    fs::remove_file(&key).unwrap();
    manual.advance(Duration::from_secs(5));
    handshake(&second, &config, "second.example", &[]).unwrap();
}

#[test]
fn unusable_files_are_rejected_with_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let (first, first_key) = pair("first");
    let (_, other_key) = pair("other");
    let open = |own: &str, own_key: &str| {
        fs::write(&certificate, own).unwrap();
        fs::write(&key, own_key).unwrap();
        let opened = CertificateFiles::open(&certificate, &key, Clock::System);
        opened.map(drop).map_err(|err| Chain(&err).to_string())
    };
    open(&first, &first_key).unwrap();
    for (own, own_key, expect) in [
        (
            first.as_str(),
            other_key.as_str(),
            "key and certificate are unusable",
        ),
        ("", first_key.as_str(), "contains no certificate"),
        (first.as_str(), "", "the key is not PEM"),
    ] {
        let err = open(own, own_key).unwrap_err();
        assert!(err.contains(expect) && err.contains("tls.crt"), "{err}");
    }
    let missing = directory.path().join("missing");
    let err = CertificateFiles::open(&missing, &key, Clock::System).map(drop);
    assert!(err.unwrap_err().to_string().contains("missing"));
}

#[test]
fn client_of_the_files_trusts_only_their_present_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let manual = ManualClock::new(rooflet_base::clock::at(0));
    let write = |(own, own_key): (String, String)| {
        fs::write(&certificate, own).unwrap();
        fs::write(&key, own_key).unwrap();
    };
    write(pair("first.example"));
    let files = CertificateFiles::open(&certificate, &key, Clock::Manual(manual.clone())).unwrap();
    let client = || files.client_config().unwrap();
    let before = files.server_config().unwrap();
    connect(client(), &before, "127.0.0.1").expect("its own certificate");
    let other = tempfile::tempdir().unwrap();
    let [other_certificate, other_key] = ["tls.crt", "tls.key"].map(|name| other.path().join(name));
    let (own, own_key) = pair("first.example");
    fs::write(&other_certificate, own).unwrap();
    fs::write(&other_key, own_key).unwrap();
    let foreign = CertificateFiles::open(&other_certificate, &other_key, Clock::System).unwrap();
    let foreign = foreign.server_config().unwrap();
    assert!(connect(client(), &foreign, "first.example").is_err());

    write(pair("second.example"));
    manual.advance(Duration::from_secs(5));
    connect(client(), &before, "127.0.0.1").expect("the changed certificate");
}
