#include <bn_engine.hpp>
#include <iostream>

int main() {
    bn::Engine engine; // bn::Engine engine(bn::EngineConfig("model.gguf")) loads a model of yours
    std::cout << "17+25=" << engine.generate("17+25=") << "\n";
    for (const bn::Event &event : engine.stream(bn::Request("Once upon a time"))) std::cout << event.text << std::flush;
}
