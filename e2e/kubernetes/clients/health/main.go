// Program that reads an object in JSON from standard input. It prints the state of the object by the
// generic rules of kstatus, and the result of the health check in the file of the first argument,
// which is Lua for Argo CD. The second argument is the key of the health check.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func main() {
	var object map[string]any
	must(json.NewDecoder(os.Stdin).Decode(&object))
	result, err := status.Compute(&unstructured.Unstructured{Object: integers(object).(map[string]any)})
	must(err)
	fmt.Printf("kstatus %s: %s\n", result.Status, result.Message)

	text, err := os.ReadFile(os.Args[1])
	must(err)
	var settings struct {
		Data map[string]string `json:"data"`
	}
	must(yaml.Unmarshal(text, &settings))
	script, found := settings.Data[os.Args[2]]
	if !found {
		return
	}
	// Argo CD opens only these libraries.
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{"": lua.OpenBase, lua.LoadLibName: lua.OpenPackage, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath} {
		must(state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)))
	}
	state.SetGlobal("obj", luaValue(state, object))
	must(state.DoString(script))
	health := state.Get(-1).(*lua.LTable)
	fmt.Printf("health %s: %s\n", health.RawGetString("status"), health.RawGetString("message"))
}

// Returns the value with integers, as Kubernetes decodes JSON.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for key, member := range value {
			copied[key] = integers(member)
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, item := range value {
			copied[i] = integers(item)
		}
		return copied
	case float64:
		if value == float64(int64(value)) {
			return int64(value)
		}
	}
	return value
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case float64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		table := state.CreateTable(len(value), 0)
		for _, item := range value {
			table.Append(luaValue(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(value))
		for key, member := range value {
			table.RawSetString(key, luaValue(state, member))
		}
		return table
	}
	return lua.LNil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
