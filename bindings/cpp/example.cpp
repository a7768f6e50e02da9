#include <bn_engine.hpp>
#include <iostream>

int main() {
    bn::Engine engine; // bn::Engine engine("model.gguf") has a model of yours
    std::cout << "17+25=" << engine.generate("17+25=").text << "\n";
    for (const bn::Event &event : engine.stream("Once upon a time")) std::cout << event.text << std::flush;
}
