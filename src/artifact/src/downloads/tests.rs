use super::*;
use rooflet_testing::TempDir;

struct Scene {
    directory: TempDir,
    downloads: Downloads,
}

fn model(text: &str) -> HubModel {
    text.parse().unwrap()
}

impl Scene {
    fn new() -> Self {
        let directory = TempDir::new();
        let root = directory.path().join("models");
        Self {
            directory,
            downloads: Downloads::new(root),
        }
    }

    /// A whole model of so many bytes.
    fn whole(&self, text: &str, bytes: usize) -> Utf8PathBuf {
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
fn a_branch_is_the_commit_that_it_was() {
    let scene = Scene::new();
    let path = scene.whole("hf://o/n@c0", 10);
    let (main, pinned) = (model("hf://o/n"), model("hf://o/n@c0"));
    assert_eq!(scene.downloads.find(&pinned), Some(path.clone()));
    assert_eq!(scene.downloads.find(&main), None);
    scene.downloads.remember(&main, &pinned).unwrap();
    scene
        .downloads
        .remember(&model("hf://o/n@refs/pr/1"), &pinned)
        .unwrap();
    scene.downloads.remember(&pinned, &pinned).unwrap();
    assert_eq!(scene.downloads.find(&main), Some(path.clone()));
    assert_eq!(scene.downloads.find(&model("hf://o/n@refs/pr/1")), Some(path));
    assert_eq!(scene.downloads.find(&model("hf://o/n@c1")), None);
    // Who writes there cannot lead out of it.
    let reference = scene.downloads.reference(&main);
    fs::write(&reference, "../../../..").unwrap();
    assert_eq!(scene.downloads.find(&main), None);
    assert_eq!(scene.list(), ["hf://o/n@c0"]);
    drop(scene.directory);
}

#[test]
fn what_was_used_longest_ago_makes_room_first() {
    let scene = Scene::new();
    let old = scene.whole("hf://o/old@c0", 100);
    let new = scene.whole("hf://o/new@c0", 100);
    let used = scene.whole("hf://o/used@c0", 100);
    let used_partial = scene.downloads.partial(&model("hf://o/used@c0"));
    let gone = scene.downloads.partial(&model("hf://o/gone@c0"));
    for (path, second) in [(&old, 10), (&new, 20)] {
        scene.downloads.touch(path);
        let file = fs::File::options().write(true).open(hidden(path, USED)).unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
        file.set_modified(at).unwrap();
    }
    for partial in [&used_partial, &gone] {
        fs::create_dir_all(partial).unwrap();
        fs::write(partial.join("model.safetensors.partial"), [1; 50]).unwrap();
    }
    assert_eq!(scene.downloads.came(&model("hf://o/used@c0")), Bytes(50));
    let in_use = BTreeSet::from([used.clone()]);
    assert_eq!(scene.downloads.unused(&in_use), Bytes(250));
    scene.downloads.remove_unused(&in_use, Bytes::ZERO);
    assert_eq!(scene.list().len(), 3);
    scene.downloads.remove_unused(&in_use, Bytes(1));
    assert_eq!(scene.list(), ["hf://o/new@c0", "hf://o/used@c0"]);
    scene.downloads.remove_unused(&in_use, Bytes(1000));
    assert_eq!(scene.list(), ["hf://o/used@c0"]);
    assert!(used_partial.exists() && !gone.exists());
    assert_eq!(scene.downloads.unused(&in_use), Bytes::ZERO);
}
