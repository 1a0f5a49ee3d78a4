//! Test of the example `embedded`.

#[expect(dead_code, reason = "the test calls `run`, not `main`")]
#[path = "../examples/embedded.rs"]
mod embedded;

#[tokio::test]
async fn example_lists_the_widget_that_it_created() {
    let list = embedded::run().await.expect("the example runs");
    assert_eq!(list["kind"], "WidgetList");
    let widgets = list["items"].as_array().expect("items");
    assert_eq!(widgets.len(), 1);
    assert_eq!(widgets[0]["metadata"]["name"], "first");
    assert_eq!(widgets[0]["spec"]["colour"], "grey");
}
