"""What tests share: builders of reports, emulators, stand-ins for devices, ways to run programs."""
