import BnEngine

let engine = try Engine() // Engine(Model.open("model.gguf")) has a model of yours
print("17+25=" + (try await engine.generate(Request("17+25="))).text)
for try await event in try engine.stream(Request("Once upon a time")) {
    print(event.text, terminator: "") // leaving the loop cancels the request
}
