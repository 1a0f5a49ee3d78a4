//! Path of a value in an object: a linked chain on the stack, formatted only for errors.

/// Path of a node, linked to its parent's path. Does not allocate until it is formatted.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    Root,
    /// Named property.
    Child(&'a Path<'a>, &'a str),
    /// Key of a free-form map.
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path::Child(self, name)
    }

    pub fn key(&'a self, name: &'a str) -> Path<'a> {
        Path::Key(self, name)
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// Formats apimachinery's field path: `spec.labels[a].x[0]`, `<nil>` for the root.
    pub fn field(&self) -> String {
        let mut out = String::new();
        self.push_field(&mut out);
        if out.is_empty() { "<nil>".to_owned() } else { out }
    }

    fn push_field(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Child(parent, name) => {
                parent.push_field(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Key(parent, name) => {
                parent.push_field(out);
                out.push('[');
                out.push_str(name);
                out.push(']');
            }
            Path::Index(parent, index) => {
                parent.push_field(out);
                out.push_str(&format!("[{index}]"));
            }
        }
    }

    /// Formats the path like the OpenAPI validator: map keys follow a dot, the root is empty.
    pub fn openapi(&self) -> String {
        let mut out = String::new();
        self.push_openapi(&mut out);
        out
    }

    fn push_openapi(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Child(parent, name) => {
                parent.push_openapi(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Key(parent, name) => {
                parent.push_openapi(out);
                out.push('.');
                out.push_str(name);
            }
            Path::Index(parent, index) => {
                parent.push_openapi(out);
                out.push_str(&format!("[{index}]"));
            }
        }
    }
}

/// Joins owned field paths.
pub fn join(parent: &str, child: &str) -> String {
    if parent.is_empty() {
        child.to_owned()
    } else {
        format!("{parent}.{child}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_differ_only_in_map_keys_and_root() {
        let root = Path::Root;
        let spec = root.child("spec");
        let labels = spec.child("labels");
        let key = labels.key("a");
        let item = key.index(2);
        assert_eq!(item.field(), "spec.labels[a][2]");
        assert_eq!(item.openapi(), "spec.labels.a[2]");
        assert_eq!(root.field(), "<nil>");
        assert_eq!(root.openapi(), "");
    }
}
