use super::*;
use rooflet_testing::TempDir;

struct Fixture {
    directory: TempDir,
    downloads: Downloads,
}

fn model(text: &str) -> HubModel {
    text.parse().unwrap()
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new();
        let root = directory.path().join("models");
        Self {
            directory,
            downloads: Downloads::new(root),
        }
    }

    /// Creates a complete model of this size.
    fn create_complete(&self, text: &str, bytes: usize) -> Utf8PathBuf {
        let path = self.downloads.path(&model(text));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("model.safetensors"), vec![1; bytes]).unwrap();
        path
    }

    fn list(&self) -> Vec<String> {
        let listed = self.downloads.list().into_iter();
        listed.map(|(model, _)| model.to_string()).collect()
    }
}

#[test]
fn branch_resolves_to_recorded_commit() {
    let fixture = Fixture::new();
    let path = fixture.create_complete("hf://o/n@c0", 10);
    let (main, pinned) = (model("hf://o/n"), model("hf://o/n@c0"));
    assert_eq!(fixture.downloads.find(&pinned), Some(path.clone()));
    assert_eq!(fixture.downloads.find(&main), None);
    fixture.downloads.record_commit(&main, &pinned).unwrap();
    fixture
        .downloads
        .record_commit(&model("hf://o/n@refs/pr/1"), &pinned)
        .unwrap();
    fixture.downloads.record_commit(&pinned, &pinned).unwrap();
    assert_eq!(fixture.downloads.find(&main), Some(path.clone()));
    assert_eq!(fixture.downloads.find(&model("hf://o/n@refs/pr/1")), Some(path));
    assert_eq!(fixture.downloads.find(&model("hf://o/n@c1")), None);
    // A manipulated reference must not lead out of the directory.
    let reference = fixture.downloads.reference(&main);
    fs::write(&reference, "../../../..").unwrap();
    assert_eq!(fixture.downloads.find(&main), None);
    assert_eq!(fixture.list(), ["hf://o/n@c0"]);
    drop(fixture.directory);
}

#[test]
fn removes_least_recently_used_model_first() {
    let fixture = Fixture::new();
    let old = fixture.create_complete("hf://o/old@c0", 100);
    let new = fixture.create_complete("hf://o/new@c0", 100);
    let used = fixture.create_complete("hf://o/used@c0", 100);
    let used_partial = fixture.downloads.partial(&model("hf://o/used@c0"));
    let gone = fixture.downloads.partial(&model("hf://o/gone@c0"));
    for (path, second) in [(&old, 10), (&new, 20)] {
        fixture.downloads.touch(path);
        let file = fs::File::options().write(true).open(hidden(path, USED)).unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
        file.set_modified(at).unwrap();
    }
    for partial in [&used_partial, &gone] {
        fs::create_dir_all(partial).unwrap();
        fs::write(partial.join("model.safetensors.partial"), [1; 50]).unwrap();
    }
    assert_eq!(
        fixture.downloads.downloaded_bytes(&model("hf://o/used@c0")),
        Bytes(50)
    );
    let in_use = BTreeSet::from([used.clone()]);
    assert_eq!(fixture.downloads.unused(&in_use), Bytes(250));
    fixture.downloads.remove_unused(&in_use, Bytes::ZERO);
    assert_eq!(fixture.list().len(), 3);
    fixture.downloads.remove_unused(&in_use, Bytes(1));
    assert_eq!(fixture.list(), ["hf://o/new@c0", "hf://o/used@c0"]);
    fixture.downloads.remove_unused(&in_use, Bytes(1000));
    assert_eq!(fixture.list(), ["hf://o/used@c0"]);
    assert!(used_partial.exists() && !gone.exists());
    assert_eq!(fixture.downloads.unused(&in_use), Bytes::ZERO);
}

/// An agent that ends during a removal leaves the renamed directory.
#[test]
fn interrupted_removal_does_not_prevent_later_ones() {
    let fixture = Fixture::new();
    let path = fixture.create_complete("hf://o/n@c0", 100);
    let left = hidden(&path, ".removed");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("model.safetensors"), "x").unwrap();
    assert_eq!(
        fixture.downloads.delete(&model("hf://o/n@c0")).unwrap(),
        Some(Bytes(100))
    );
    assert!(!path.exists() && !left.exists());
}

#[test]
fn used_model_behind_a_symbolic_link_is_kept() {
    let fixture = Fixture::new();
    let disk = fixture.directory.path().canonicalize_utf8().unwrap().join("disk");
    std::os::unix::fs::symlink(&disk, fixture.directory.path().join("models")).unwrap();
    // The disk is mounted after the start of the agent.
    assert_eq!(fixture.list().len(), 0);
    fs::create_dir(&disk).unwrap();
    let path = fixture.create_complete("hf://o/n@c0", 100);
    let real = path.canonicalize_utf8().unwrap();
    let in_use = BTreeSet::from([real.clone()]);
    assert_eq!(fixture.downloads.unused(&in_use), Bytes::ZERO);
    assert_eq!(fixture.downloads.find(&model("hf://o/n@c0")), Some(real.clone()));
    fixture.downloads.touch(&real);
    assert!(fixture.downloads.last_use(&model("hf://o/n@c0")).is_some());
    fixture.downloads.remove_unused(&in_use, Bytes(1));
    assert!(real.exists());
}
